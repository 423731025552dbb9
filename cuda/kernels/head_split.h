// Arguments of head_split.cu.
#ifndef KVEVICT_CUDA_KERNELS_HEAD_SPLIT_H_
#define KVEVICT_CUDA_KERNELS_HEAD_SPLIT_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

enum HeadSplitKind : uint32_t {
  kHeadsAdaptive = 1,
  kHeadsBlend = 2,
  kHeadsThreshold = 3
};

struct HeadSplitLayer {
  SelectLayer select;
  uint32_t budget;    // of each list, if all kept the same
  uint32_t n_own;     // slots that a list keeps whatever others have
  uint64_t together;  // slots that all lists keep
};
static_assert(sizeof(HeadSplitLayer) == 48);

struct HeadSplitParams {
  static constexpr uint32_t kMaxLayers = 83;
  SelectLists lists;  // `keep` is written
  uint32_t input;     // SelectInput
  uint32_t kind;      // HeadSplitKind
  float won_part;     // of a blend
  float threshold;
  HeadSplitLayer layers[kMaxLayers];
};
static_assert(sizeof(HeadSplitParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_HEAD_SPLIT_H_
