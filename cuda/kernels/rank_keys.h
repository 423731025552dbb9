// Arguments of rank_keys.cu.
#ifndef KVEVICT_CUDA_KERNELS_RANK_KEYS_H_
#define KVEVICT_CUDA_KERNELS_RANK_KEYS_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

struct RankRange {
  uint32_t first;  // position
  uint32_t end;
  int32_t rank;
};

struct RankLayer {
  SelectLayer select;  // `scores` are keys, in place
  SlotPositions slots;
  uint32_t n_least;  // with a share: the fewest that are selected
  uint32_t reserved;
};
static_assert(sizeof(RankLayer) == 64);

struct RankParams {
  static constexpr uint32_t kMaxLayers = 48;
  static constexpr uint32_t kMaxRanges = 64;
  SelectLists lists;
  CountTable kept;  // of the slots
  float share;      // part of what a list keeps that is selected; negative: all
  uint32_t n_ranges;
  RankLayer layers[kMaxLayers];
  RankRange ranges[kMaxRanges];  // ascending
};
static_assert(sizeof(RankParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_RANK_KEYS_H_
