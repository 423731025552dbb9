// Rows of caches: where they are, and their elements by several lanes of a
// warp.
#ifndef KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_

#include "device.cuh"
#include "dtypes.cuh"
#include "params.h"
#include "row_address.cuh"

namespace kvevict::cuda {

// A row, and for codes how to decode them: code * scale + minimum. The address
// is 0 for a missing row.
enum : int { kNoNumbers, kNumbersAtHand, kNumbersInMemory };
template <int kNumbers>
struct RowWith {
  uint64_t address;
};
template <>
struct RowWith<kNumbersAtHand> {
  uint64_t address;
  float scale;
  float minimum;
};
// Scale and minimum may be per element, and the row may be a recent one, which
// has none.
template <>
struct RowWith<kNumbersInMemory> {
  uint64_t address;
  uint64_t scale;  // 0: none; kIsRecent
  uint64_t minimum;

  enum : uint64_t { kIsRecent = 1 };
  KV_DEVICE bool is_recent() const { return scale == kIsRecent; }
};
using CacheRow = RowWith<kReadsTokenGroups ? kNumbersInMemory
                         : kReadsQuantized ? kNumbersAtHand
                                           : kNoNumbers>;

KV_DEVICE float LoadNumber(uint32_t dtype, uint64_t address) {
  if (dtype == kF16) return ToFloat<kF16>(LoadGlobal<uint16_t>(address));
  if (dtype == kBF16) return ToFloat<kBF16>(LoadGlobal<uint16_t>(address));
  return LoadGlobal<float>(address);
}

// The address of a row's number, or of that of its element 0; 0 if there is
// none.
KV_DEVICE uint64_t NumberAddress(const RowLayout& rows,
                                 const RowNumbers& numbers,
                                 uint64_t block_table, uint32_t head,
                                 uint32_t slot) {
  if (numbers.base == 0) return 0;
  if (numbers.is_constant != 0) {
    return numbers.base + head * numbers.head_stride;
  }
  if (kReadsTokenGroups && numbers.group_tokens != 0) {
    // A block has whole groups.
    const uint32_t row = rows.block_size == 0 ? slot : slot % rows.block_size;
    slot = slot - row + row / numbers.group_tokens;
  }
  RowLayout layout = rows;
  layout.row_stride = numbers.row_stride;
  layout.head_stride = numbers.head_stride;
  layout.block_stride = numbers.block_stride;
  layout.far = numbers.far;
  return RowAddress(layout, numbers.base, block_table, head, slot);
}

// The number, or `otherwise` if there is none.
KV_DEVICE float NumberOf(const RowLayout& rows, const RowNumbers& numbers,
                         uint64_t block_table, uint32_t head, uint32_t slot,
                         float otherwise) {
  const uint64_t address =
      NumberAddress(rows, numbers, block_table, head, slot);
  return address == 0 ? otherwise : LoadNumber(numbers.dtype, address);
}

// Finds a row's scale and minimum. `from` has those of rows with this layout.
template <class From>
KV_DEVICE void FindNumbers(const From& from, const RowLayout& rows,
                           uint64_t block_table, uint32_t head, uint32_t slot,
                           RowWith<kNumbersAtHand>& row) {
  row.scale = NumberOf(rows, from.scale, block_table, head, slot, 1.0f);
  row.minimum = NumberOf(rows, from.minimum, block_table, head, slot, 0.0f);
}
template <class From>
KV_DEVICE void FindNumbers(const From& from, const RowLayout& rows,
                           uint64_t block_table, uint32_t head, uint32_t slot,
                           RowWith<kNumbersInMemory>& row) {
  row.scale = NumberAddress(rows, from.scale, block_table, head, slot);
  row.minimum = NumberAddress(rows, from.minimum, block_table, head, slot);
}
template <class From>
KV_DEVICE void FindNumbers(const From&, const RowLayout&, uint64_t, uint32_t,
                           uint32_t, RowWith<kNoNumbers>&) {}

// Whether a slot is a recent one, which is in no block. Finds its row.
template <class From>
KV_DEVICE bool FindRecent(const From& from, uint32_t head, uint32_t slot,
                          RowWith<kNumbersInMemory>& row) {
  const RecentRows& recent = from.recent;
  row = {};
  if (recent.base == 0 || slot < recent.first) return false;
  row.scale = row.kIsRecent;
  row.address = recent.base + head * recent.head_stride +
                (slot - recent.first) * recent.row_stride;
  return true;
}
template <class From, class Row>
KV_DEVICE bool FindRecent(const From&, uint32_t, uint32_t, Row&) {
  return false;
}

// Finds the row of a slot. `base` is slot 0, head 0.
KV_DEVICE CacheRow FindRow(const CacheRows& rows, uint64_t base,
                           uint64_t block_table, uint32_t head, uint32_t slot) {
  CacheRow row;
  if (FindRecent(rows, head, slot, row)) return row;
  row.address = RowAddress(rows.layout, base, block_table, head, slot);
  FindNumbers(rows, rows.layout, block_table, head, slot, row);
  return row;
}

template <class Tag>
KV_DEVICE ElementPlace FindElement(Tag tag, const CacheRows& rows, uint32_t i) {
  return FindElement(tag, rows.layout, rows.n_elements, i);
}

template <int kDType>
KV_DEVICE float OfCode(uint32_t code, const RowWith<kNumbersAtHand>& row) {
  return Scaled<kDType>(code, row.scale, row.minimum);
}

// Element i of packed numbers.
KV_DEVICE float LoadNumber(uint32_t dtype, uint64_t address, uint32_t i) {
  return LoadNumber(dtype, address + uint64_t{i} * (dtype == kF32 ? 4 : 2));
}

// The number of a row or of its element i, or `otherwise` if there is none.
KV_DEVICE float NumberOf(const RowNumbers& numbers, uint64_t address,
                         uint32_t i, float otherwise) {
  if (address == 0) return otherwise;
  return LoadNumber(numbers.dtype, address, numbers.group_tokens == 0 ? 0 : i);
}

// `from` is as for FindNumbers().
template <class Tag, class From, int kNumbers>
KV_DEVICE float LoadElement(Tag tag, const From& from,
                            const RowWith<kNumbers>& row,
                            const ElementPlace& place) {
  constexpr bool kInMemory = kNumbers == kNumbersInMemory;
  if constexpr (kInMemory && !Tag::kIsPlain) {
    if (row.is_recent()) {
      return LoadNumber(from.recent.dtype, row.address, place.element);
    }
  }
  const uint32_t code = LoadCode(tag, row.address, place);
  if constexpr (Tag::kIsPlain) {
    return ToFloat<Tag::kValue>(code);
  } else if constexpr (Tag::kHasBlocks) {
    const uint64_t scale = row.address + place.block;
    return Scaled<Tag::kValue>(code, ToFloat<kF16>(LoadGlobal<uint16_t>(scale)),
                               0.0f);
  } else if constexpr (kInMemory) {
    return Scaled<Tag::kValue>(
        code, NumberOf(from.scale, row.scale, place.element, 1.0f),
        NumberOf(from.minimum, row.minimum, place.element, 0.0f));
  } else {
    return OfCode<Tag::kValue>(code, row);
  }
}

// Whether rows are loaded 16 bytes at a time: codes only if their numbers are
// in registers.
template <class Tag>
KV_DEVICE bool AreWide(Tag, const CacheRows& rows) {
  return (Tag::kIsPlain || !kReadsTokenGroups) && rows.wide != 0;
}

// The elements in 16 bytes of a wide row.
template <class Tag>
KV_DEVICE void Unpack(Tag, const CacheRow& row, const Bytes16& words,
                      float (&v)[Tag::kPer16]) {
  constexpr uint32_t kPerWord = Tag::kPer16 / 4;
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    const uint32_t word = words.x[j];
    if constexpr (Tag::kBytes == 4) {
      v[j] = ToFloat<Tag::kValue>(word);
    } else if constexpr (Tag::kIsPlain) {
      v[2 * j] = ToFloat<Tag::kValue>(word & 0xffff);
      v[2 * j + 1] = ToFloat<Tag::kValue>(word >> 16);
    } else if constexpr (!kReadsTokenGroups) {
#pragma unroll
      for (uint32_t k = 0; k < kPerWord; ++k) {
        // The high nibble of a byte comes first.
        const uint32_t code = kPerWord == 8 ? word >> ((k ^ 1) * 4) & 15
                                            : word >> (k * 8 % 32) & 255;
        v[j * kPerWord + k] = OfCode<Tag::kValue>(code, row);
      }
    }
  }
}

// Elements [first, first + n) of rows, shared by some lanes of a warp. If rows
// are wide they fill whole loads.
struct RowPart {
  uint32_t first;
  uint32_t n;
  uint32_t lanes;
};

// Calls visit(r, i, value) for the elements of a part that lane `lane` has of
// some rows, which may be missing. Element first + i is visited in the order of
// the rows, and a row's elements are visited in order.
template <class Tag, uint32_t kRows, class Visit>
KV_DEVICE void VisitWide(Tag tag, const CacheRows& rows, const RowPart& part,
                         const CacheRow (&found)[kRows], uint32_t lane,
                         const Visit& visit) {
  for (uint32_t i = lane; i < part.n / Tag::kPer16; i += part.lanes) {
    const uint64_t offset = uint64_t{part.first / Tag::kPer16 + i} * rows.wide;
    Bytes16 words[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      words[r] = found[r].address == 0
                     ? Bytes16{}
                     : LoadGlobal<Bytes16>(found[r].address + offset);
    }
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      float v[Tag::kPer16];
      Unpack(tag, found[r], words[r], v);
#pragma unroll
      for (uint32_t j = 0; j < Tag::kPer16; ++j) {
        visit(r, i * Tag::kPer16 + j, v[j]);
      }
    }
  }
}

// The same, one element at a time.
template <class Tag, uint32_t kRows, class Visit>
KV_DEVICE void VisitNarrow(Tag tag, const CacheRows& rows, const RowPart& part,
                           const CacheRow (&found)[kRows], uint32_t lane,
                           const Visit& visit) {
  for (uint32_t i = lane; i < part.n; i += part.lanes) {
    // One after the other if numbers are in memory, because registers are
    // scarce.
    if constexpr (kReadsTokenGroups) i = Afresh(i);
    const ElementPlace place = FindElement(tag, rows, part.first + i);
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      if (found[r].address == 0) continue;
      visit(r, i, LoadElement(tag, rows, found[r], place));
    }
  }
}

// The same for rows of any dtype. Missing wide rows are visited with zeros.
template <uint32_t kRows, class Visit>
KV_DEVICE void VisitRows(const CacheRows& rows, const RowPart& part,
                         const CacheRow (&found)[kRows], uint32_t lane,
                         const Visit& visit) {
  WithDType(rows.dtype, [&](auto tag) {
    if (AreWide(tag, rows)) {
      VisitWide(tag, rows, part, found, lane, visit);
    } else {
      VisitNarrow(tag, rows, part, found, lane, visit);
    }
  });
}

// The same with whole rows, by rows.lanes.
template <uint32_t kRows, class Visit>
KV_DEVICE void VisitRows(const CacheRows& rows, const CacheRow (&found)[kRows],
                         uint32_t lane, const Visit& visit) {
  VisitRows(rows, {0, rows.head_dim, rows.lanes}, found, lane, visit);
}

// Calls visit(i, element) for all elements of a row that is not missing, by one
// thread.
template <class Visit>
KV_DEVICE void VisitRow(const CacheRows& rows, const CacheRow& row,
                        const Visit& visit) {
  const CacheRow at[1] = {row};
  if (row.address == 0) return;
  VisitRows(rows, {0, rows.head_dim, 1}, at, 0,
            [&](uint32_t, uint32_t i, float v) { visit(i, v); });
}

// The sum over the lanes of a row; every lane has it.
KV_DEVICE float SumOverLanes(float v, uint32_t lanes) {
  for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CACHE_ROWS_CUH_
