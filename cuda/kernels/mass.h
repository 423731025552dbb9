// Arguments of mass.cu.
#ifndef KVEVICT_CUDA_KERNELS_MASS_H_
#define KVEVICT_CUDA_KERNELS_MASS_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

struct MassLayer {
  SelectLayer select;
  uint64_t masses;  // f32 [n_lists, 3]: all, kept, the largest evicted
};
static_assert(sizeof(MassLayer) == 40);

struct MassParams {
  static constexpr uint32_t kMaxLayers = 96;
  SelectLists lists;
  uint32_t adds;      // adds to the present values
  uint32_t of_chunk;  // lists that keep all slots have no mass
  MassLayer layers[kMaxLayers];
};
static_assert(sizeof(MassParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_MASS_H_
