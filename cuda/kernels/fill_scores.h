// Arguments and launch shape of fill_scores.cu.
#ifndef KVEVICT_CUDA_KERNELS_FILL_SCORES_H_
#define KVEVICT_CUDA_KERNELS_FILL_SCORES_H_

#include "params.h"

namespace kvevict::cuda {

struct FillScoresLayer {
  uint64_t scores;  // out: f32 [n_kv_heads, n_tokens]
  uint64_t rows;    // caller, sums: f32, head stride below
  SlotPositions slots;
  uint32_t n_tokens;
  uint32_t layer;  // random: the layer that draws
  int32_t first_token_count;
  // caller, sums: tokens so far; each slot saw those from its position on
  uint32_t n_seen;
};
static_assert(sizeof(FillScoresLayer) == 56);

struct FillScoresParams {
  static constexpr uint32_t kMaxLayers = 70;
  uint64_t seed;
  uint64_t head_stride;  // of rows; elements
  CountTable tokens;     // per KV head
  CountTable kept;       // of the slots
  uint32_t n_kv_heads;
  uint32_t n_lists;  // of positions: 1 or n_kv_heads
  // sums: rows of sums and of scores per KV head, 1 or one for each query head.
  // 0 rows of sums: one row is for all KV heads.
  uint32_t n_sum_rows;
  uint32_t n_score_rows;
  uint32_t is_max;   // rows of sums are reduced to their maximum
  float scale;       // else factor of their sum
  uint32_t divides;  // divides by the number of queries that saw a slot
  // sums: if not 0, sums are of the last n_query_rows queries, each of which
  // saw the slots up to its own. n_seen and positions do not matter then.
  uint32_t n_query_rows;
  uint32_t n_summed;   // sums are of at most this many last queries
  uint32_t half_life;  // caller: of scores, in tokens; 0: they do not decay
  FillScoresLayer layers[kMaxLayers];
};
static_assert(sizeof(FillScoresParams) <= 4096);

// Grid (blocks for the longest layer, n_kv_heads, n_layers).
constexpr uint32_t kFillThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_FILL_SCORES_H_
