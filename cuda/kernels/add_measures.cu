// Adds up for each layer what the blocks of window_attention.cu have measured.
#include "add_measures.h"
#include "device.cuh"

namespace kvevict::cuda {

// Grid (n_layers), one warp each. Reads 8 bytes per block of window attention,
// in an order that depends only on their number.
KV_KERNEL(add_measures, AddMeasuresParams, 32, 1) {
  const uint64_t parts = p.parts + uint64_t{8} * blockIdx.x * p.n_parts;
  float sums[2] = {};
  for (uint32_t i = threadIdx.x; i < p.n_parts; i += 32) {
    for (uint32_t k = 0; k < 2; ++k) {
      sums[k] += LoadGlobal<float>(parts + uint64_t{8} * i + 4 * k);
    }
  }
  for (uint32_t k = 0; k < 2; ++k) {
    for (uint32_t mask = 16; mask > 0; mask /= 2) {
      sums[k] += ShuffleXor(sums[k], mask);
    }
  }
  if (threadIdx.x != 0) return;
  StoreGlobal(p.out[blockIdx.x], sums[0] * p.scale);
  StoreGlobal(p.out[blockIdx.x] + 4, sums[1]);
}

}  // namespace kvevict::cuda
