// Runs both passes of window_attention.cu over inputs in any layout, against the oracle.
#ifndef KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_LAUNCH_H_
#define KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_LAUNCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/kernels/window_attention.h"
#include "tests/kernels/random.h"
#include "tests/oracle/window_attention.h"
#include "tests/rig/simt/simt.h"

namespace kvevict::cuda {

// How a variant treats rows: bits of the column of that name.
enum AttentionRows : uint32_t {
  kSoftmaxPast = 1,
  kWeighByPast = 2,
  kMaxOfRows = 4,
  kPart = 8,  // several launches for more rows than a window has
  // Every token has a row; a window is a part of the rows of a chunk.
  kChunks = 16,
  kSpread = 32,
  kMeasureDynamics = 64,
  kMeasureEnds = 128,
  kSoftcap = 256,
  kSinks = 512,
  kBias = 1024,
  kStaged = 2048,  // KV_STAGED_TILES is this bit and the next
};

// A row of mma_variants.inc, fma_variants.inc or few_variants.inc.
struct AttentionVariant {
  const char* name;
  uint32_t q_dtype;
  uint32_t k_dtype;
  uint32_t head_dim;
  uint32_t window;
  uint32_t group;
  bool paged;
  uint32_t tile_keys;
  uint32_t out;
  bool ragged;
  bool use_mma;
  bool few;  // window_attention_few.cu
  uint32_t rows;
  uint32_t logit_heads;
  void (*first_pass)(const ScoreParams&);
  void (*second_pass)(const ScoreParams&);
};
// Query rows per head: a window's, or two parts and more. With chunks they are a
// chunk's, with enough tiles that one replaces another.
inline uint32_t QueryRows(const AttentionVariant& v) {
  const uint32_t parts = 2 * v.window + v.window / 2 + 1;
  if ((v.rows & kChunks) != 0) return parts + 2 * v.tile_keys;
  return (v.rows & kPart) != 0 ? parts : v.window;
}
inline uint32_t StagedTiles(const AttentionVariant& v) {
  return v.rows / kStaged % 4;
}
// The query rows of a head of n_tokens.
inline uint32_t QueryRows(const AttentionVariant& v, uint32_t n_tokens) {
  return (v.rows & kChunks) != 0 ? n_tokens : QueryRows(v);
}

// One layer: an input per KV head, all of one length. In ragged variants none is
// longer than the first.
using AttentionLayer = std::vector<oracle::WindowAttentionInput>;

// Gaussian numbers that the variant's dtypes can hold. One key in 50 points
// towards a query, so that the softmax is not flat.
AttentionLayer RandomLayer(const AttentionVariant& variant, uint32_t n_kv_heads,
                           uint32_t n_tokens, Random& random);

// Four channels lie on one side, far from zero, for all queries and for all keys,
// as in heads of real models: dot products are about 1,000, and neither they nor
// their sums fit in f32.
AttentionLayer OutlierLayer(const AttentionVariant& variant,
                            uint32_t n_kv_heads, uint32_t n_tokens,
                            Random& random);

enum class RowOrder {
  kTokenMajor,    // [rows, heads, elements]
  kHeadMajor,     // [heads, rows, elements]
  kElementMajor,  // [heads, elements, rows]
  kReversed       // kTokenMajor, the last row first
};

struct AttentionLayout {
  RowOrder queries = RowOrder::kTokenMajor;
  RowOrder keys = RowOrder::kTokenMajor;
  uint32_t block_size = 24;  // paged variants: a shuffled table
  uint32_t first_row = 0;    // of the query ring
  uint32_t n_spare = 0;      // its rows beside the window's
  uint32_t tiles_per_split = 3;
  // Odd layers come with row log-sum-exps, so only the others are summed.
  bool odd_layers_have_lse = false;
  // The gap between rows: 16 bytes, as tensor cores always have, and keys that
  // few rows meet; or an element.
  // Rows of f32 that lie end to end are copied with the former.
  bool gap_is_wide = false;
};
inline bool MayCopy(const AttentionVariant& v) {
  return !v.few && v.q_dtype == kF32 && v.k_dtype == kF32 &&
         v.head_dim % 4 == 0 && v.logit_heads == 1;
}

// Scores of every layer, followed by two measured numbers. Memory has the exact
// size, and is NaN wherever nothing was stored: between rows, in partial sums, in
// the scores before.
std::vector<std::vector<float>> RunAttention(
    const AttentionVariant& variant, const std::vector<AttentionLayer>& layers,
    const AttentionLayout& layout, const simt::Options& options);

struct Comparison {
  // The first score that is further from the oracle's than the tolerance, or NaN
  // where the oracle's is not or vice versa; empty if there is none.
  std::string error;
  // The largest error of all scores that are not tiny.
  double relative_error = 0.0;
  double part_of_tolerance = 0.0;
};
Comparison CompareWithOracle(const AttentionVariant& variant,
                             const AttentionLayer& layer,
                             const std::vector<float>& scores);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_WINDOW_ATTENTION_LAUNCH_H_
