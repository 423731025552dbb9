// Rows of caches: where they are, and their elements by several lanes of a warp.
#ifndef KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_

#include "device.cuh"
#include "params.h"

namespace kvevict::cuda {

// The row of a slot. `base`: slot 0, head 0; block_table: i32, paged rows only.
KV_DEVICE uint64_t RowAddress(const RowLayout& layout, uint64_t base,
                              uint64_t block_table, uint32_t head,
                              uint32_t slot) {
  base += head * layout.head_stride;
  if (layout.block_size == 0) return base + slot * layout.row_stride;
  const uint32_t page = slot / layout.block_size;
  const uint64_t entry = uint64_t{head} * layout.table_head_stride + page;
  const int64_t block = LoadGlobal<int32_t>(block_table + entry * 4);
  return base + block * layout.block_stride +
         (slot - page * layout.block_size) * layout.row_stride;
}

// visit(r, i, value) with the elements that lane `lane` of rows.lanes has of some
// rows; an address of 0 is of no row. What the rows have of an element is visited
// in the order of the rows, and so are a row's elements.
template <int kDType, uint32_t kRows, class Visit>
KV_DEVICE void VisitWide(const CacheRows& rows,
                         const uint64_t (&addresses)[kRows], uint32_t lane,
                         const Visit& visit) {
  constexpr uint32_t kElements = kDType == kF32 ? 4 : 8;
  for (uint32_t i = lane; i < rows.head_dim / kElements; i += rows.lanes) {
    Bytes16 words[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      words[r] = addresses[r] == 0
                     ? Bytes16{}
                     : LoadGlobal<Bytes16>(addresses[r] + uint64_t{i} * 16);
    }
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t word = words[r].x[j];
        if constexpr (kDType == kF32) {
          visit(r, i * 4 + j, ToFloat<kDType>(word));
        } else {
          visit(r, i * 8 + 2 * j, ToFloat<kDType>(word & 0xffff));
          visit(r, i * 8 + 2 * j + 1, ToFloat<kDType>(word >> 16));
        }
      }
    }
  }
}

// The same, an element at a time.
template <int kDType, uint32_t kRows, class Visit>
KV_DEVICE void VisitNarrow(const CacheRows& rows,
                           const uint64_t (&addresses)[kRows], uint32_t lane,
                           const Visit& visit) {
  for (uint32_t i = lane; i < rows.head_dim; i += rows.lanes) {
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      if (addresses[r] == 0) continue;
      const uint64_t at = addresses[r] + i * rows.layout.element_stride;
      if constexpr (kDType == kF32) {
        visit(r, i, ToFloat<kDType>(LoadGlobal<uint32_t>(at)));
      } else {
        visit(r, i, ToFloat<kDType>(LoadGlobal<uint16_t>(at)));
      }
    }
  }
}

template <int kDType, bool kCanScore, uint32_t kRows, class Visit>
KV_DEVICE void VisitRowsOf(const CacheRows& rows,
                           const uint64_t (&addresses)[kRows], uint32_t lane,
                           const Visit& visit) {
  if constexpr (kCanScore) {
    if (rows.wide != 0) {
      VisitWide<kDType>(rows, addresses, lane, visit);
    } else {
      VisitNarrow<kDType>(rows, addresses, lane, visit);
    }
  }
}

// The same for whatever dtype they have. Absent rows are visited with zeros where
// rows are wide.
template <uint32_t kRows, class Visit>
KV_DEVICE void VisitRows(const CacheRows& rows,
                         const uint64_t (&addresses)[kRows], uint32_t lane,
                         const Visit& visit) {
#define KVEVICT_DTYPE(Name, text, id, bytes, move, score, rotate)   \
  if (rows.dtype == k##Name) {                                      \
    VisitRowsOf<k##Name, score != 0>(rows, addresses, lane, visit); \
  }
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
}

// Over the lanes of a row: every one of them has the sum then.
KV_DEVICE float SumOverLanes(float v, uint32_t lanes) {
  for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_
