// Arguments and launch shape of weigh.cu.
#ifndef KVEVICT_CUDA_KERNELS_WEIGH_H_
#define KVEVICT_CUDA_KERNELS_WEIGH_H_

#include "params.h"

namespace kvevict::cuda {

struct WeighLayer {
  uint64_t scores;   // f32 [n_kv_heads, n_tokens], in place
  uint64_t weights;  // f32, head stride below
  uint32_t n_tokens;
  int32_t first_count;  // index in WeighParams::tokens
  SlotPositions slots;  // read if `shares`
};
static_assert(sizeof(WeighLayer) == 48);

struct WeighParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint64_t weight_head_stride;  // elements
  CountTable tokens;            // per KV head
  CountTable kept;              // of slots, per list
  uint32_t n_kv_heads;
  float epsilon;
  uint32_t shares;      // weights are divided by their sum over the heads
  uint32_t slot_lists;  // 1 if heads share their slots, else n_kv_heads
  WeighLayer layers[kMaxLayers];
};
static_assert(sizeof(WeighParams) <= 4096);

// Grid (blocks for the longest layer, n_kv_heads, n_layers).
constexpr uint32_t kWeighThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WEIGH_H_
