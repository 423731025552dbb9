// The number of elements in each list of a layer.
#ifndef KVEVICT_CUDA_KERNELS_COUNTS_CUH_
#define KVEVICT_CUDA_KERNELS_COUNTS_CUH_

#include "device.cuh"
#include "params.h"

namespace kvevict::cuda {

// `first` is the layer's index in the table. `alike` is the count of its lists
// if there is no table.
KV_DEVICE uint32_t CountOf(const CountTable& table, int32_t first,
                           uint32_t list, uint32_t alike) {
  if (table.base == 0) return alike;
  const int64_t place = first + int64_t{list} * table.step;
  return LoadGlobal<uint32_t>(table.base + static_cast<uint64_t>(place * 4));
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_COUNTS_CUH_
