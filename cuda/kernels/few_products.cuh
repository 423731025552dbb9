// Products of a few query rows, in shared memory as f32, with a few keys at once.
// A team of lanes shares the keys, and each lane has some 16-byte loads of each.
#ifndef KVEVICT_CUDA_KERNELS_FEW_PRODUCTS_CUH_
#define KVEVICT_CUDA_KERNELS_FEW_PRODUCTS_CUH_

#include "device.cuh"

namespace kvevict::cuda {

struct alignas(16) FourFloats {
  float x[4];
};

// The place of element e of a query row. The elements that meet a load of a key
// are in groups of four, and each group of all loads is contiguous, in the
// order in which lanes read them.
template <uint32_t kPer16>
KV_DEVICE uint32_t FewPlace(uint32_t row, uint32_t e, uint32_t n_loads) {
  const uint32_t four = row * (kPer16 / 4) + e % kPer16 / 4;
  return (four * n_loads + e / kPer16) * 4 + e % 4;
}

// Adds the products of all rows with a load of each key, whose elements are v.
// The sum of key s and row r is sums[s * kRows + r].
template <uint32_t kRows, uint32_t kKeys, uint32_t kPer16, uint32_t kSums>
KV_DEVICE void AddFewProducts(const float (&v)[kKeys][kPer16], uint32_t load,
                              uint32_t n_loads, const float* queries,
                              float (&sums)[kSums]) {
#pragma unroll
  for (uint32_t four = 0; four < kPer16 / 4; ++four) {
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      const FourFloats q = *reinterpret_cast<const FourFloats*>(
          &queries[((r * (kPer16 / 4) + four) * n_loads + load) * 4]);
#pragma unroll
      for (uint32_t s = 0; s < kKeys; ++s) {
        float& sum = sums[s * kRows + r];
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          sum = Fma(q.x[j], v[s][four * 4 + j], sum);
        }
      }
    }
  }
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_FEW_PRODUCTS_CUH_
