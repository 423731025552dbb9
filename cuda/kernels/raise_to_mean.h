// Arguments of raise_to_mean.cu.
#ifndef KVEVICT_CUDA_KERNELS_RAISE_TO_MEAN_H_
#define KVEVICT_CUDA_KERNELS_RAISE_TO_MEAN_H_

#include "params.h"

namespace kvevict::cuda {

struct RaiseLayer {
  uint64_t scores;  // f32 [n_rows, n_tokens], in place
  uint32_t n_tokens;
  int32_t first_count;  // index in RaiseParams::tokens
};
static_assert(sizeof(RaiseLayer) == 16);

struct RaiseParams {
  static constexpr uint32_t kMaxLayers = 240;
  uint32_t n_unpooled;  // last ones, which are in no mean and stay
  uint32_t reserved;
  CountTable tokens;
  RaiseLayer layers[kMaxLayers];
};
static_assert(sizeof(RaiseParams) <= 4096);

// The sums that are added up: a thread has each.
constexpr uint32_t kRaiseThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_RAISE_TO_MEAN_H_
