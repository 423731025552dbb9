// Arguments of standardize.cu.
#ifndef KVEVICT_CUDA_KERNELS_STANDARDIZE_H_
#define KVEVICT_CUDA_KERNELS_STANDARDIZE_H_

#include "params.h"

namespace kvevict::cuda {

struct StandardizeLayer {
  uint64_t scores;    // f32 [n_kv_heads, n_tokens], in place
  uint64_t leverage;  // the same, to add; 0: scores are standardised
  uint32_t n_tokens;
  int32_t first_count;  // index in StandardizeParams::tokens
  uint32_t n_sink;      // slots at both ends, which are not counted
  uint32_t n_recent;
  float blend;  // the factor of leverage
  uint32_t reserved;
};
static_assert(sizeof(StandardizeLayer) == 40);

struct StandardizeParams {
  static constexpr uint32_t kMaxLayers = 96;
  CountTable tokens;  // per KV head
  uint32_t n_kv_heads;
  uint32_t reserved;
  StandardizeLayer layers[kMaxLayers];
};
static_assert(sizeof(StandardizeParams) <= 4096);

// The sums that are added up: a thread has each.
constexpr uint32_t kStandardizeThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_STANDARDIZE_H_
