// Arguments and launch shape of rescue.cu.
#ifndef KVEVICT_CUDA_KERNELS_RESCUE_H_
#define KVEVICT_CUDA_KERNELS_RESCUE_H_

#include "params.h"

namespace kvevict::cuda {

enum AnchorKind : uint32_t {  // the numbers of Anchor
  kAnchorMean = 0,
  kAnchorZeros = 1,
  kAnchorOnes = 2,
  kAnchorAlternating = 3,
  kAnchorRandom = 4
};

struct RescueLayer {
  uint64_t scores;  // f32 [n_lists, n_tokens], out
  uint64_t marks;   // f32, strides below; may be the scores
  uint64_t keep;  // i32 [n_lists, keep stride], ascending: the other survivors
  uint64_t scratch;       // u32 [n_lists, n_tokens]
  uint64_t marks_stride;  // elements from list to list
  uint32_t n_tokens;
  uint32_t n_keep;
  uint32_t n_blocks;  // blocks to rescue in each list; 0: nothing is done
  uint32_t layer;
  uint32_t n_seen;
  uint32_t reserved;
};
static_assert(sizeof(RescueLayer) == 64);

struct RescueParams {
  static constexpr uint32_t kMaxLayers = 62;
  uint64_t seed;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t block;   // slots of a block
  uint32_t anchor;  // AnchorKind
  uint32_t reserved;
  RescueLayer layers[kMaxLayers];
};
static_assert(sizeof(RescueParams) <= 4096);

// Grid (n_lists, n_layers).
constexpr uint32_t kRescueThreads = 256;
constexpr uint32_t kMostRescueBlock = 65536;  // slots of a block

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_RESCUE_H_
