// A barrier that no thread needs: mutate.sh has to say so.
#include "cuda/kernels/device.cuh"

namespace kvevict::cuda {

struct RedundantParams {
  uint64_t out;  // u32 [64]
};

KV_KERNEL(redundant, RedundantParams, 64, 1) {
  KV_SHARED(uint32_t, tile, 64);
  tile[threadIdx.x] = threadIdx.x;
  BlockSync();
  StoreGlobal(p.out + 4 * threadIdx.x, tile[threadIdx.x]);
}

}  // namespace kvevict::cuda
