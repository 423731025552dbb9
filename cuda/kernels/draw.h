// Arguments and launch shape of draw.cu.
#ifndef KVEVICT_CUDA_KERNELS_DRAW_H_
#define KVEVICT_CUDA_KERNELS_DRAW_H_

#include "params.h"

namespace kvevict::cuda {

struct DrawLayer {
  uint64_t scores;  // f32 [n_kv_heads, n_tokens], in place
  SlotPositions slots;
  uint32_t n_tokens;
  int32_t first_count;  // index in DrawParams::tokens
  uint32_t n_seen;      // tokens so far, if no positions are listed
  uint32_t layer;       // its number in the model
};
static_assert(sizeof(DrawLayer) == 48);

struct DrawParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint64_t seed;
  CountTable tokens;    // per KV head
  CountTable kept;      // of slots, per list
  uint32_t slot_lists;  // 1 if heads share their slots, else n_kv_heads
  uint32_t reserved;
  DrawLayer layers[kMaxLayers];
};
static_assert(sizeof(DrawParams) <= 4096);

// Grid (blocks for the longest layer, n_kv_heads, n_layers).
constexpr uint32_t kDrawThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DRAW_H_
