// Operations that observe queries, score, and work on the scores of heads.
//
// Of all operations: arguments have been checked. Pointers but for views are to memory of
// the device.
#ifndef KVEVICT_CORE_OPS_SCORE_H_
#define KVEVICT_CORE_OPS_SCORE_H_

#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "core/jobs.h"
#include "core/kernels/row_source.h"
#include "core/ops/op.h"
#include "core/policy/shaping.h"

namespace kvevict {

class Rope;

// Query rows of one layer, and what is known of them. Row w, the query of token
// n_tokens - n_rows + w, is stored row (first_row + w) % ring_rows.
struct QueryRows {
  PlainRows rows;
  int64_t head_stride = 0;
  uint32_t n_rows = 0;  // the window's; 0: none are given
  uint32_t first_row = 0;
  uint32_t ring_rows = UINT32_MAX;  // this: they do not wrap
  // Natural log-sum-exps in the same order; NULL if unknown. Strides in bytes.
  const float* lse = nullptr;
  int64_t lse_row_stride = 0;
  int64_t lse_head_stride = 0;
};

// Rows of one chunk into the rings of layers.
struct ObserveArgs {
  // [n_heads, first_row + n_rows] rows each; strides may be 0 for packed.
  Jobs<const kvevict_plane*> layers;
  uint32_t n_heads;
  uint32_t first_row;       // those before it would not stay
  uint32_t n_rows;          // <= ring_rows
  uint32_t first_position;  // of first_row
  // Not NULL: first_position counts from the position that stands there when
  // the work runs.
  const uint32_t* position_address;
  // [layers, ring_rows, n_heads, packed row]; position p in row p % ring_rows
  uint8_t* rings;
  uint32_t ring_rows;
};

// Floats of every head, packed within it.
struct FloatRows {
  const float* data = nullptr;
  uint64_t head_stride = 0;  // elements
};

// What a layer's slots got of the attention of a chunk, into its sums.
struct AddSumsJob {
  FloatRows from;           // [n_from, slots with the chunk's]
  uint32_t n_from = 0;      // a multiple of n_rows
  uint32_t first_from = 0;  // where `from` is a ring: the first of those to add
  float* sums = nullptr;    // [n_rows, AddSumsArgs::stride]
  uint32_t n_rows = 0;
  // Slots before the chunk's, per list, of which rows in the same order have one, or as
  // many each.
  ListCounts tokens;
  uint32_t n_lists = 1;
  bool begins = false;  // nothing has been added: slots before begin at 0 too
  // Not NULL: sums are a ring, and when the work runs here stands, modulo sums_ring,
  // which of its rows is written.
  const uint32_t* turn = nullptr;
};

// Rows that one row of sums stands for are reduced; of each slot and the next pool - 1
// the maximum is added.
struct AddSumsArgs {
  Jobs<AddSumsJob> jobs;
  uint32_t n_new;   // slots of the chunk, which begin at 0
  uint64_t stride;  // of rows of sums, which have as many slots; elements
  uint32_t pool;
  kvevict_reduce reduce;
  bool clears = false;  // slots behind the chunk's become 0, up to the stride
  // Rows of the ring that it is; 0: it is none.
  uint32_t from_ring = 0;
  uint32_t sums_ring = 0;
};

struct ScoreJob {
  ListCounts tokens;                   // slots held, per KV head
  const kvevict_view* view = nullptr;  // where the signal reads keys
  QueryRows queries;                   // where it reads queries
  // Natural logits [n_q_heads] that take part in their softmax, and do so in its
  // log-sum-exps; NULL: none.
  const float* sinks = nullptr;
  SlotPositions slots;
  float* rows = nullptr;  // out: [ScoreArgs::n_rows, tokens.most]
  // What else the signal needs, of the caller's.
  FloatRows caller;  // [n_kv_heads, tokens.most] scores
  // [n_sum_heads, tokens.most] of attention; none: to be made of `queries`
  FloatRows sums;
  uint32_t n_sum_heads = 0;  // n_q_heads, n_kv_heads, or 1 of all of them
  uint32_t n_seen = 0;       // tokens so far, and as many queries
  // Of these, `sums` are at most of so many last ones.
  uint32_t n_summed = INT32_MAX;
  uint32_t n_sink = 0;         // first slots, which stay whatever they score
  uint32_t next_position = 0;  // of the next one, as RoPE will see it
  uint32_t layer = 0;          // its number in the model
  ListCounts keep;             // slots that lists are to keep, of job.slots
  FloatRows query_mean;        // [n_q_heads, k_head_dim]
  FloatRows query_covariance;  // [n_q_heads, k_head_dim, k_head_dim], or none
  FloatRows key_filter;        // [n_kv_heads, k_head_dim]
  FloatRows query_centers;     // [n_q_heads, 3, rope.n_frequencies()]
  FloatRows weights;           // [n_kv_heads, tokens.most], for weighing
  float* measure = nullptr;    // out: a LayerMeasure, where the policy wants it
};

// One signal's numbers for every token, a row per KV head, or per query head
// where shaping wants them apart.
struct ScoreArgs {
  using Size = LayerSize;

  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;                 // the signal's own parameters
  const Rope& rope;
  float softmax_scale;
  bool per_query_head;
  uint32_t n_tokens;  // the most of any layer, of these jobs or beside them
  Jobs<ScoreJob> jobs;
  std::span<uint8_t> scratch;

  uint32_t n_rows() const {
    return per_query_head ? layer.n_q_heads : layer.n_kv_heads;
  }
};

struct ShapeJob {
  ListCounts tokens;      // per KV head
  float* rows = nullptr;  // [n_kv_heads * n_terms, tokens.most]; is written to
  float* scores = nullptr;  // out: [n_kv_heads, tokens.most]; may be `rows`
  // What is read beside scores: values where their norms are weights, keys where they are
  // compared.
  const kvevict_view* view = nullptr;
  FloatRows weights;  // [n_kv_heads, tokens.most], the caller's
};

// Pools rows along the tokens and reduces the n_terms rows of each KV head. The
// last n_unpooled tokens of a row are left out and become +infinity.
struct ShapeArgs {
  using Size = LayerSize;

  Shaping shaping;
  uint32_t n_kv_heads;
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;
};

// Makes shaped scores (score + epsilon) * weight, in place, as the policy says,
// which has weights; +infinity stays.
struct ApplyWeightsArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  Jobs<ShapeJob> jobs;
};

// Takes the redundancy of a head's keys off its weighed scores, in place, as the
// policy says, whose redundancy is above 0; +infinity stays.
struct SubtractRedundancyArgs {
  using Size = LayerSize;

  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  uint32_t n_tokens;  // the most of any layer, of these jobs or beside them
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;
};

struct ReduceJob {
  uint32_t n_tokens = 0;
  const float* rows = nullptr;  // [n_rows, n_tokens], end to end
  float* out = nullptr;         // [n_tokens]; may be the first row
};

// Rows of heads, layers and ranks that share a keep list become one.
struct ReduceArgs {
  Jobs<ReduceJob> jobs;
  uint32_t n_rows;
  kvevict_reduce reduce;
};

// What a plan says of the calls to come beside geometry and policy.
struct ScoreTraits {
  bool is_ragged = false;  // heads may have unlike lengths
  bool has_sinks = false;
};

// How a device scores by one signal.
struct ScoreOp : Op<ScoreArgs> {
  // Compiles what calls with this geometry and policy launch beyond what all do; null
  // for nothing.
  Status (*prepare)(const Context& context, const kvevict_layer_geometry& layer,
                    const Policy& policy, const ScoreTraits& traits) = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_SCORE_H_
