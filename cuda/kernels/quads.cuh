// Rows of 32-bit words in units of 16-byte loads.
#ifndef KVEVICT_CUDA_KERNELS_QUADS_CUH_
#define KVEVICT_CUDA_KERNELS_QUADS_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// A row of n < 2^31 words in aligned groups of four. The first group may begin
// up to three words before the row, and the last one end up to three after it.
// Words outside the row belong to another row and are not used.
struct Quads {
  uint64_t row;
  uint32_t n;
  uint32_t lead;  // words of group 0 before the row

  KV_DEVICE Quads(uint64_t row, uint32_t n)
      : row(row), n(n), lead(static_cast<uint32_t>(row / 4 % 4)) {}

  KV_DEVICE uint32_t Size() const { return (lead + n + 3) / 4; }

  // The index in the row of a group's first word. Before the row it wraps
  // around, which is beyond n too.
  KV_DEVICE uint32_t Place(uint32_t quad) const { return 4 * quad - lead; }

  // Words outside the row read as 0.
  KV_DEVICE Bytes16 Load(uint32_t quad) const {
    const uint32_t place = Place(quad);
    if (place < n && n - place >= 4) {
      return LoadGlobal<Bytes16>(row + uint64_t{place} * 4);
    }
    Bytes16 words = {};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t i = place + j;
      if (i < n) words.x[j] = LoadGlobal<uint32_t>(row + uint64_t{i} * 4);
    }
    return words;
  }
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_QUADS_CUH_
