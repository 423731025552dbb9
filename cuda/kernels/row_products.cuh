// Rows of caches together with a row of floats: their elements in pairs, by
// several lanes of a warp.
#ifndef KVEVICT_CUDA_KERNELS_ROW_PRODUCTS_CUH_
#define KVEVICT_CUDA_KERNELS_ROW_PRODUCTS_CUH_

#include "cache_rows.cuh"
#include "device.cuh"
#include "params.h"

namespace kvevict::cuda {

// Loads n adjacent floats, a multiple of four.
template <uint32_t n>
KV_DEVICE void LoadFloats(uint64_t address, float (&v)[n]) {
  if (address % 16 == 0) {
#pragma unroll
    for (uint32_t j = 0; j < n; j += 4) {
      const Bytes16 words = LoadGlobal<Bytes16>(address + j * sizeof(float));
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) v[j + k] = ToFloat<kF32>(words.x[k]);
    }
  } else {
#pragma unroll
    for (uint32_t j = 0; j < n; ++j) {
      v[j] = LoadGlobal<float>(address + j * sizeof(float));
    }
  }
}

// Calls visit(r, value, other) with the elements that lane `lane` of rows.lanes
// has of some rows, and for each the float at the same index of `with`. Missing
// rows may be visited with zeros. A row's elements are visited in order, and
// the first row's whenever another row's are.
template <uint32_t kRows, class Visit>
KV_DEVICE void VisitRowsWith(const CacheRows& rows,
                             const CacheRow (&found)[kRows], uint32_t lane,
                             uint64_t with, const Visit& visit) {
  WithDType(rows.dtype, [&](auto tag) {
    using Tag = decltype(tag);
    if (AreWide(tag, rows)) {
      for (uint32_t i = lane; i < rows.head_dim / Tag::kPer16;
           i += rows.lanes) {
        const uint64_t offset = uint64_t{i} * rows.wide;
        Bytes16 words[kRows];
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r) {
          words[r] = found[r].address == 0
                         ? Bytes16{}
                         : LoadGlobal<Bytes16>(found[r].address + offset);
        }
        float others[Tag::kPer16];
        LoadFloats(with + uint64_t{i} * (Tag::kPer16 * sizeof(float)), others);
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r) {
          float v[Tag::kPer16];
          Unpack(tag, found[r], words[r], v);
#pragma unroll
          for (uint32_t j = 0; j < Tag::kPer16; ++j) visit(r, v[j], others[j]);
        }
      }
    } else {
      for (uint32_t i = lane; i < rows.head_dim; i += rows.lanes) {
        const ElementPlace place = FindElement(tag, rows, i);
        const float other =
            LoadGlobal<float>(with + uint64_t{i} * sizeof(float));
#pragma unroll
        for (uint32_t r = 0; r < kRows; ++r) {
          if (found[r].address == 0) continue;
          visit(r, LoadElement(tag, rows, found[r], place), other);
        }
      }
    }
  });
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROW_PRODUCTS_CUH_
