// Scales that turn keys into directions, and sums of directions.
#ifndef KVEVICT_CUDA_KERNELS_DIRECTIONS_CUH_
#define KVEVICT_CUDA_KERNELS_DIRECTIONS_CUH_

#include "cache_rows.cuh"
#include "device.cuh"

namespace kvevict::cuda {

// A block of kThreads threads has as many keys, n of which exist. A thread
// stores scale_of(the sum of squares of its own key), which is 0 if the key has
// no direction. Then it adds up one element of all directions, every sum in the
// order of the keys. `row` is missing past the last key. rows and scales are
// shared memory.
template <uint32_t kThreads, class ScaleOf>
KV_DEVICE void FindDirections(const CacheRows& keys, const CacheRow& row,
                              uint32_t n, uint64_t scale_at, uint64_t sums,
                              const ScaleOf& scale_of, CacheRow* rows,
                              float* scales) {
  float square = 0.0f;
  VisitRow(keys, row, [&](uint32_t, float v) { square = Fma(v, v, square); });
  const float scale = scale_of(square);
  if (row.address != 0) StoreGlobal(scale_at, scale);
  rows[threadIdx.x] = scale != 0.0f ? row : CacheRow{};
  scales[threadIdx.x] = scale;
  BlockSync();
  WithDType(keys.dtype, [&](auto tag) {
    for (uint32_t i = threadIdx.x; i < keys.head_dim; i += kThreads) {
      const ElementPlace place = FindElement(tag, keys, i);
      float sum = 0.0f;
#pragma unroll 4
      for (uint32_t t = 0; t < n; ++t) {
        const float v = rows[t].address == 0
                            ? 0.0f
                            : LoadElement(tag, keys, rows[t], place);
        sum = Fma(v, scales[t], sum);
      }
      StoreGlobal(sums + uint64_t{i} * sizeof(float), sum);
    }
  });
}

// Adds up n_chunks sums of an element, which are stride bytes apart, and writes
// the total to the first.
KV_DEVICE void AddChunks(uint64_t at, uint32_t n_chunks, uint64_t stride) {
  float sum = LoadGlobal<float>(at);
#pragma unroll 4
  for (uint32_t c = 1; c < n_chunks; ++c) {
    sum += LoadGlobal<float>(at + c * stride);
  }
  StoreGlobal(at, sum);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DIRECTIONS_CUH_
