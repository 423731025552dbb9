// Rows of caches: where they are, and their elements by several lanes of a warp.
#ifndef KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_

#include "device.cuh"
#include "params.h"
#include "row_address.cuh"

namespace kvevict::cuda {

template <int kDType>
struct DTypeTag {
  static constexpr int kValue = kDType;
  static constexpr uint32_t kBytes = kDType == kF32 ? 4 : 2;
  static constexpr uint32_t kPer16 = 16 / kBytes;
};

template <int kDType, bool kIsPlain, class Use>
KV_DEVICE void UseDType(const Use& use) {
  if constexpr (kIsPlain) use(DTypeTag<kDType>());
}

// Calls use() with the tag of a dtype that is not quantized.
template <class Use>
KV_DEVICE void WithDType(uint32_t dtype, const Use& use) {
#define KVEVICT_DTYPE(Name, text, id, bytes, ...) \
  if (dtype == k##Name) UseDType<k##Name, (bytes > 1)>(use);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
}

template <class Tag>
KV_DEVICE float LoadElement(Tag, uint64_t address) {
  if constexpr (Tag::kBytes == 4) {
    return ToFloat<Tag::kValue>(LoadGlobal<uint32_t>(address));
  } else {
    return ToFloat<Tag::kValue>(LoadGlobal<uint16_t>(address));
  }
}

template <class Tag>
KV_DEVICE void Unpack(Tag, const Bytes16& words, float (&v)[Tag::kPer16]) {
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    const uint32_t word = words.x[j];
    if constexpr (Tag::kBytes == 4) {
      v[j] = ToFloat<Tag::kValue>(word);
    } else {
      v[2 * j] = ToFloat<Tag::kValue>(word & 0xffff);
      v[2 * j + 1] = ToFloat<Tag::kValue>(word >> 16);
    }
  }
}

// visit(r, i, value) with the elements that lane `lane` of rows.lanes has of some
// rows; an address of 0 is of no row. What the rows have of an element is visited
// in the order of the rows, and so are a row's elements: head_dim from `first` on,
// which fills whole loads where rows are wide.
template <class Tag, uint32_t kRows, class Visit>
KV_DEVICE void VisitWide(Tag tag, const CacheRows& rows,
                         const uint64_t (&addresses)[kRows], uint32_t lane,
                         const Visit& visit, uint32_t first) {
  for (uint32_t i = lane; i < rows.head_dim / Tag::kPer16; i += rows.lanes) {
    const uint64_t offset = uint64_t{first / Tag::kPer16 + i} * rows.wide;
    Bytes16 words[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      words[r] = addresses[r] == 0 ? Bytes16{}
                                   : LoadGlobal<Bytes16>(addresses[r] + offset);
    }
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      float v[Tag::kPer16];
      Unpack(tag, words[r], v);
#pragma unroll
      for (uint32_t j = 0; j < Tag::kPer16; ++j) {
        visit(r, i * Tag::kPer16 + j, v[j]);
      }
    }
  }
}

// The same, an element at a time.
template <class Tag, uint32_t kRows, class Visit>
KV_DEVICE void VisitNarrow(Tag tag, const CacheRows& rows,
                           const uint64_t (&addresses)[kRows], uint32_t lane,
                           const Visit& visit, uint32_t first) {
  for (uint32_t i = lane; i < rows.head_dim; i += rows.lanes) {
    const int64_t offset = ElementOffset(rows.layout, first + i);
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      if (addresses[r] == 0) continue;
      visit(r, i, LoadElement(tag, addresses[r] + offset));
    }
  }
}

// The same for whatever dtype they have. Absent rows are visited with zeros where
// rows are wide.
template <uint32_t kRows, class Visit>
KV_DEVICE void VisitRows(const CacheRows& rows,
                         const uint64_t (&addresses)[kRows], uint32_t lane,
                         const Visit& visit, uint32_t first = 0) {
  WithDType(rows.dtype, [&](auto tag) {
    if (rows.wide != 0) {
      VisitWide(tag, rows, addresses, lane, visit, first);
    } else {
      VisitNarrow(tag, rows, addresses, lane, visit, first);
    }
  });
}

// visit(i, element) with all of a row that is there, by one thread.
template <class Visit>
KV_DEVICE void VisitRow(const CacheRows& rows, uint64_t row,
                        const Visit& visit) {
  CacheRows mine = rows;
  mine.lanes = 1;
  const uint64_t at[1] = {row};
  if (row == 0) return;
  VisitRows(mine, at, 0, [&](uint32_t, uint32_t i, float v) { visit(i, v); });
}

// Over the lanes of a row: every one of them has the sum then.
KV_DEVICE float SumOverLanes(float v, uint32_t lanes) {
  for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_
