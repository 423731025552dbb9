// Arguments and launch shapes of cur.cu.
#ifndef KVEVICT_CUDA_KERNELS_CUR_H_
#define KVEVICT_CUDA_KERNELS_CUR_H_

#include "params.h"
#include "row_norm.h"

namespace kvevict::cuda {

struct CurLayer {
  uint64_t scores;  // f32 [n_kv_heads, n_tokens]: norms of keys, then scores
  uint64_t value_norms;  // f32, likewise
  uint64_t sums;         // f32 [n_kv_heads, CurBlocks()]
  uint32_t n_tokens;
  int32_t first_count;  // index in CurParams::tokens
};
static_assert(sizeof(CurLayer) == 32);

struct CurParams {
  static constexpr uint32_t kMaxLayers = RowNormParams::kMaxLayers;
  CountTable tokens;  // per KV head
  uint32_t window;
  uint32_t n_sink;
  CurLayer layers[kMaxLayers];
};
static_assert(sizeof(CurParams) <= 4096);

constexpr uint32_t kCurThreads = 256;
constexpr uint32_t kCurScaleThreads = 256;
constexpr uint32_t kCurScaleTokens = 2048;  // of a block

// Blocks of cur_shares: a warp has a window.
constexpr uint32_t CurBlocks(uint32_t n_tokens, uint32_t window) {
  const uint32_t n_windows = n_tokens / window + (n_tokens % window != 0);
  return n_windows / (kCurThreads / 32) + (n_windows % (kCurThreads / 32) != 0);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CUR_H_
