// Operations that observe queries, score, and change the scores of heads.
// For all operations: arguments have been checked, and pointers other than
// those to views are to device memory.
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

// The query rows of one layer. Row w, the query of token n_tokens - n_rows + w,
// is stored in row (first_row + w) % ring_rows.
struct QueryRows {
  PlainRows rows;
  int64_t head_stride = 0;
  uint32_t n_rows = 0;  // rows of the window; 0: none are given
  uint32_t first_row = 0;
  uint32_t ring_rows = UINT32_MAX;  // UINT32_MAX: rows do not wrap
  // Natural log-sum-exps in the same order, or NULL. Strides are in bytes.
  const float* lse = nullptr;
  int64_t lse_row_stride = 0;
  int64_t lse_head_stride = 0;
};

// Writes the rows of one chunk to the rings of layers.
struct ObserveArgs {
  // [n_heads, first_row + n_rows] rows each. Strides may be 0 for packed.
  Jobs<const kvevict_plane*> layers;
  // The rings' dtype. If the layers' rows have another, they are f32 and are
  // rounded to this one.
  DType dtype;
  uint32_t n_heads;
  uint32_t first_row;       // rows before it would be overwritten
  uint32_t n_rows;          // <= ring_rows
  uint32_t first_position;  // position of first_row
  // If not NULL, first_position counts from the position stored here when the
  // work runs.
  const uint32_t* position_address;
  // [layers, ring_rows, n_heads, packed row]. Position p is in row p %
  // ring_rows.
  uint8_t* rings;
  uint32_t ring_rows;
};

// Floats of every head, packed within a head.
struct FloatRows {
  const float* data = nullptr;
  uint64_t head_stride = 0;  // elements
};

// Adds the attention that a layer's slots received from a chunk to its sums.
struct AddSumsJob {
  // [n_from, slots with the chunk's], or with only_new [n_from, n_new]
  FloatRows from;
  uint32_t n_from = 0;      // a multiple of n_rows
  uint32_t first_from = 0;  // if `from` is a ring: the first row to add
  float* sums = nullptr;    // [n_rows, AddSumsArgs::stride]
  uint32_t n_rows = 0;
  // Slots before the chunk's, per list. Rows are in the order of lists, each
  // list with the same number of rows.
  ListCounts tokens;
  uint32_t n_lists = 1;
  bool begins = false;  // no sums yet: slots before the chunk begin at 0 too
  // If not NULL, sums are a ring. The row to write is stored here, modulo
  // sums_ring, when the work runs.
  const uint32_t* turn = nullptr;
};

// Reduces the rows that one row of sums stands for. The maximum of each slot
// and the next pool - 1 is added.
struct AddSumsArgs {
  Jobs<AddSumsJob> jobs;
  uint32_t n_new;   // slots of the chunk, whose sums begin at 0
  uint64_t stride;  // slots of a row of sums, in elements
  uint32_t pool;
  kvevict_reduce reduce;
  bool clears = false;  // sets slots after the chunk's, up to the stride, to 0
  // Slots before the chunk's stay as they are, and `from` does not have them.
  bool only_new = false;
  // The rows in the ring of `from` and that of `sums`; 0: it is no ring.
  uint32_t from_ring = 0;
  uint32_t sums_ring = 0;
};

struct ScoreJob {
  ListCounts tokens;                   // slots held, per KV head
  const kvevict_view* view = nullptr;  // if the signal reads keys
  QueryRows queries;                   // if it reads queries
  // [n_q_heads, Policy::reference] reference queries, if the policy has them,
  // and their i32 positions; NULL: they see every slot.
  const kvevict_plane* reference = nullptr;
  const int32_t* reference_positions = nullptr;
  // Natural sink logits [n_q_heads], which are part of the softmax and of its
  // log-sum-exps; NULL: none.
  const float* sinks = nullptr;
  SlotPositions slots;
  float* rows = nullptr;  // out: [ScoreArgs::n_rows, tokens.most]
  // Other inputs of the signal, given by the caller.
  FloatRows caller;  // [n_kv_heads, tokens.most] scores
  // [n_sum_heads, tokens.most] of attention. If none, sums are computed from
  // `queries`.
  FloatRows sums;
  uint32_t n_sum_heads = 0;  // n_q_heads, n_kv_heads, or 1 for all heads
  uint32_t n_seen = 0;       // tokens, and so queries, so far
  // `sums` include at most this many of the last queries.
  uint32_t n_summed = INT32_MAX;
  uint32_t n_sink = 0;         // first slots, which always stay
  uint32_t n_recent = 0;       // last slots, likewise
  uint32_t next_position = 0;  // position of the next token, as RoPE sees it
  uint32_t layer = 0;          // its number in the model
  ListCounts keep;             // slots that lists keep, of job.slots
  // Statistics of the model's queries: query_mean [n_q_heads, k_head_dim],
  // key_filter [n_kv_heads, k_head_dim] or query_centers [n_q_heads, 3, pairs].
  FloatRows statistics;
  FloatRows query_covariance;  // [n_q_heads, k_head_dim, k_head_dim]; optional
  FloatRows weights;           // [n_kv_heads, tokens.most]
  float* measure = nullptr;    // out: a LayerMeasure, if the policy reads it
  // Out: [n_kv_heads, tokens.most], the mean weight over rows and query heads
  // in the slots before the window, if the policy secures a mass.
  float* masses = nullptr;
};

// The positions by which reference queries see slots. Keys that are rotated at
// every eviction lie at the positions of their slots.
inline SlotPositions ReferenceSlots(const Policy& policy, const ScoreJob& job) {
  return policy.rotate != 0 ? SlotPositions() : job.slots;
}

// Computes one signal's scores for every token. There is a row per KV head, or
// per query head if shaping needs them apart.
struct ScoreArgs {
  using Size = LayerSize;

  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;                 // the signal's own parameters
  const Rope& rope;
  float softmax_scale;
  bool per_query_head;
  uint32_t n_tokens;  // of the longest layer in the call, maybe of other jobs
  Jobs<ScoreJob> jobs;
  std::span<uint8_t> scratch;

  uint32_t n_rows() const {
    return per_query_head ? layer.n_q_heads : layer.n_kv_heads;
  }
};

struct ShapeJob {
  const ScoreJob* scored = nullptr;  // what the rows are scores of
  float* rows = nullptr;    // [n_kv_heads * n_terms, tokens.most]; overwritten
  float* scores = nullptr;  // out: [n_kv_heads, tokens.most]; may be `rows`
  double share = 0.0;  // the budget's part of the context, to secure by mass
  // Leverage to add, [n_kv_heads, tokens.most], and its factor.
  float* leverage = nullptr;
  float blend = 0.0f;
};

// The job that has the slots and rows of a job.
template <typename Job>
const Job& Scored(const Job& job) {
  return job;
}
inline const ScoreJob& Scored(const ShapeJob& job) { return *job.scored; }

// Pools rows along the tokens and reduces the n_terms rows of each KV head. The
// last n_unpooled tokens of a row are not pooled and become +infinity.
struct ShapeArgs {
  using Size = LayerSize;

  Shaping shaping;
  uint32_t n_kv_heads;
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;
};

// Raises shaped scores of a head, in place, to the mean of all but the last
// n_unpooled if they are below it. A mean that is not finite changes nothing.
struct RaiseToMeanArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  uint32_t n_unpooled;
  Jobs<ShapeJob> jobs;
};

// Replaces shaped scores by (score + epsilon) * weight, in place. The policy
// has weights, and says whether they are divided by their sum over the heads:
// see Policy.share. +infinity stays.
struct ApplyWeightsArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  Jobs<ShapeJob> jobs;
};

// Subtracts the redundancy of a head's keys from its weighted scores, in place.
// The policy's redundancy is above 0. +infinity stays.
struct SubtractRedundancyArgs {
  using Size = LayerSize;

  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  uint32_t n_tokens;  // of the longest layer in the call, maybe of other jobs
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;
};

// Gives the tokens that each head secures by their mass the highest score of
// the layer before the window, in place: see Policy.first_stage_mass. Masses are
// added in units of 2^-31 of the head's, so that devices agree.
struct SecureMassArgs {
  using Size = LayerSize;

  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  Jobs<ShapeJob> jobs;
  std::span<uint8_t> scratch;
};

// Replaces scores by what Policy.value_measure says of the slots' values.
struct MeasureValuesArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  const Policy& policy;
  Jobs<ShapeJob> jobs;
};

// Divides scores above 0 by numbers drawn from Exp(1), in place: see
// Policy.draw. No finite score becomes infinite.
struct DrawArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  uint64_t seed;
  Jobs<ShapeJob> jobs;
};

// Standardises scores over all heads of a layer: see Policy.standardize. In
// place or, with `adds`, standardises leverage and adds it, times the blend, to
// the scores of the slots between both ends. All devices give the same bits.
struct StandardizeArgs {
  const kvevict_layer_geometry& layer;  // of all jobs
  bool adds;
  Jobs<ShapeJob> jobs;
};

struct ReduceJob {
  uint32_t n_tokens = 0;
  const float* rows = nullptr;  // [n_rows, n_tokens], end to end
  float* out = nullptr;         // [n_tokens]; may be the first row
};

// Reduces the rows of heads, layers and ranks that share a keep list to one
// row.
struct ReduceArgs {
  Jobs<ReduceJob> jobs;
  uint32_t n_rows;
  kvevict_reduce reduce;
};

// What a plan knows about later calls in addition to geometry and policy.
struct ScoreTraits {
  bool is_ragged = false;  // heads may have different lengths
  bool has_sinks = false;
  bool has_biases = false;  // slots have them, because the policy fits them
};

// How a device computes one signal.
struct ScoreOp : Op<ScoreArgs> {
  // Compiles what calls with this geometry and policy launch in addition to
  // what all calls do. Null if there is nothing to compile.
  Status (*prepare)(const Context& context, const kvevict_layer_geometry& layer,
                    const Policy& policy, const ScoreTraits& traits) = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_SCORE_H_
