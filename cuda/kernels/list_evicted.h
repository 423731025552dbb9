// Arguments and launch shape of list_evicted.cu.
#ifndef KVEVICT_CUDA_KERNELS_LIST_EVICTED_H_
#define KVEVICT_CUDA_KERNELS_LIST_EVICTED_H_

#include "params.h"

namespace kvevict::cuda {

struct EvictedLayer {
  uint64_t keep;    // i32 [n_lists, keep stride]
  uint64_t slots;   // out: i32 [n_lists, stride]
  uint64_t counts;  // out: u32 [n_lists]; 0: not wanted
  uint32_t n_tokens;
  uint32_t n_keep;
  int32_t first_token_count;  // index in EvictedParams::tokens
  int32_t first_keep_count;   // index in EvictedParams::keep
  uint32_t stride;            // above the number that any list loses
  uint32_t reserved;
};
static_assert(sizeof(EvictedLayer) == 48);

struct EvictedParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint32_t n_lists;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  CountTable tokens;     // per list
  CountTable keep;
  EvictedLayer layers[kMaxLayers];
};
static_assert(sizeof(EvictedParams) <= 4096);

constexpr uint32_t kEvictedThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_LIST_EVICTED_H_
