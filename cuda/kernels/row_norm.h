// Arguments and launch shape of row_norm.cu.
#ifndef KVEVICT_CUDA_KERNELS_ROW_NORM_H_
#define KVEVICT_CUDA_KERNELS_ROW_NORM_H_

#include "params.h"

namespace kvevict::cuda {

// What becomes of norms: negated scores, factors of present scores, or scores.
enum NormUse : uint32_t { kNormNegated, kNormWeighs, kNormPlain };

struct RowNormLayer {
  uint64_t rows;         // slot 0, head 0
  uint64_t block_table;  // i32; paged rows only
  uint64_t scores;       // f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in RowNormParams::tokens
};
static_assert(sizeof(RowNormLayer) == 32);

struct RowNormParams {
  static constexpr uint32_t kMaxLayers = 120;
  CacheRows rows;
  CountTable tokens;  // per KV head
  uint32_t n_kv_heads;
  uint32_t use;          // NormUse
  float epsilon;         // added to scores before they are weighed
  uint32_t is_variance;  // of spreads: else the range
  RowNormLayer layers[kMaxLayers];
};
static_assert(sizeof(RowNormParams) <= 4096);

constexpr uint32_t kNormThreads = 256;
// The rows that a thread loads at once.
constexpr uint32_t kNormRows = 4;

// Rows of a block.
constexpr uint32_t NormBlockRows(uint32_t lanes) {
  return kNormThreads / lanes * kNormRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROW_NORM_H_
