// Stores rows whose scales and minima are shared by groups of tokens, one per
// element, group by group. The bytes are those of core/kernels/regroup.cc on
// targets with a fused multiply-add.
#include "regroup.h"
#include "requantize.h"

#include "cache_rows.cuh"
#include "codes.cuh"
#include "device.cuh"
#include "requantized_rows.cuh"

namespace kvevict::cuda {

namespace {

constexpr bool CanShareNumbers(int dtype) { return FactsOf(dtype).minimum; }

// One byte of the rows of a head. No other thread writes its elements or their
// scales.
template <class From, class To>
struct Column {
  static constexpr uint32_t kElements = IsNibbles(To::kValue) ? 2 : 1;

  const RequantizedRows& rows;
  uint32_t byte;

  // With nibbles the high one is the second element.
  KV_DEVICE uint32_t Element(uint32_t k) const {
    if constexpr (To::kFacts.packing == Packing::kPairs)
      return 2 * byte + 1 - k;
    return byte + k * (rows.to.n_elements / 2);
  }
  KV_DEVICE uint64_t ByteOf(uint64_t row) const {
    if constexpr (kElements == 2) return row + byte;
    return row + ElementOffset(rows.to.layout, byte);
  }

  // Loads the elements for a slot. Slots before the first written one are in
  // the destination already.
  KV_DEVICE void Load(uint32_t slot, float (&v)[kElements]) const {
    const RequantizePlane& plane = rows.plane;
    const uint32_t head = Afresh(rows.head);  // registers are short
    if (slot < plane.first_slot) {
      const CacheRow row =
          FindRow(rows.to, plane.to, plane.to_table, head, slot);
      LoadOf(To(), rows.to, row, v);
    } else {
      const uint32_t from = rows.SlotOf(slot - plane.first_slot);
      const CacheRow row =
          FindRow(rows.from, plane.from, plane.from_table, head, from);
      LoadOf(From(), rows.from, row, v);
    }
  }
  template <class Tag>
  KV_DEVICE void LoadOf(Tag tag, const CacheRows& of, const CacheRow& row,
                        float (&v)[kElements]) const {
#pragma unroll
    for (uint32_t k = 0; k < kElements; ++k) {
      v[k] = LoadElement(tag, of, row, FindElement(tag, of, Element(k)));
    }
  }

  KV_DEVICE void StoreCodes(uint32_t slot, const float (&v)[kElements],
                            const Coder (&coders)[kElements]) const {
    uint32_t byte = 0;
#pragma unroll
    for (uint32_t k = 0; k < kElements; ++k) {
      byte |= CodeOf<To::kValue>(v[k], coders[k]) << k * 4;
    }
    const uint64_t row =
        RowAddress(rows.to.layout, rows.plane.to, rows.plane.to_table,
                   Afresh(rows.head), slot);
    StoreGlobal(ByteOf(row), static_cast<uint8_t>(byte));
  }

  // Stores the scales and minima of the group that a slot is in.
  KV_DEVICE void StoreNumbers(uint32_t slot,
                              const Coder (&coders)[kElements]) const {
    const auto store = [&](const RowNumbers& numbers, uint32_t k,
                           float number) {
      if (numbers.base == 0) return;
      const uint64_t first = NumberAddress(
          rows.to.layout, numbers, rows.plane.to_table, rows.head, slot);
      const uint32_t bytes = numbers.dtype == kF32 ? 4 : 2;
      StoreNumber(numbers.dtype, first + uint64_t{Element(k)} * bytes, number);
    };
#pragma unroll
    for (uint32_t k = 0; k < kElements; ++k) {
      const Coder& coder = coders[k];
      store(rows.to.scale, k, coder.scale);
      store(rows.to.minimum, k, IsNumber(coder.scale) ? coder.minimum : 0.0f);
    }
  }

  // Stores slots [begin, end) of a group, which are its last ones. Their rows
  // come from these slots or later ones, and the scales of these from no
  // earlier group. So each row is read before it is overwritten, and scales are
  // written at the end.
  KV_DEVICE void Store(uint32_t begin, uint32_t end) const {
    Range ranges[kElements];
    Coder coders[kElements];
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; ++pass) {
#pragma unroll 1
      for (uint32_t slot = begin; slot < end; ++slot) {
        float v[kElements];
        Load(slot, v);
        if (pass == 1) {
          StoreCodes(slot, v, coders);
          continue;
        }
#pragma unroll
        for (uint32_t k = 0; k < kElements; ++k) ranges[k].Widen(v[k]);
      }
      if (pass == 1) break;
#pragma unroll
      for (uint32_t k = 0; k < kElements; ++k) {
        coders[k] = NumbersOf<To::kValue>(ranges[k], rows.to.scale.dtype,
                                          rows.to.minimum.dtype,
                                          rows.to.minimum.base != 0);
        coders[k].is_zero = !(coders[k].scale > 0.0f);
      }
    }
    StoreNumbers(begin, coders);
  }
};

}  // namespace

// Grid (RegroupColumns() / kRegroupThreads * runs of p.groups_per_block groups,
// n_kv_heads, n_planes). A thread has a byte of all rows of a run, whose groups
// it stores one after the other. In place there is one run. Reads rows twice,
// the second time from a cache, and writes them once.
KV_KERNEL(regroup_rows, RequantizeParams, kRegroupThreads, 8) {
  const RequantizePlane& plane = p.planes[blockIdx.z];
  const RequantizedRows rows(p, plane, blockIdx.y);
  const uint32_t group = rows.to.scale.group_tokens;
  const uint32_t n_columns = RegroupColumns(rows.to);
  const uint32_t n_column_blocks =
      (n_columns + kRegroupThreads - 1) / kRegroupThreads;
  const uint32_t byte =
      blockIdx.x % n_column_blocks * kRegroupThreads + threadIdx.x;
  if (byte >= n_columns) return;
  // Later slots are recent rows.
  uint32_t end = plane.first_slot + rows.n_keep;
  if (rows.to.recent.base != 0 && end > rows.to.recent.first) {
    end = rows.to.recent.first;
  }
  if (end <= plane.first_slot) return;
  uint32_t first = (plane.first_slot / group +
                    blockIdx.x / n_column_blocks * p.groups_per_block) *
                   group;
  for (uint32_t g = 0; g < p.groups_per_block && first < end;
       ++g, first += group) {
    const uint32_t last = end - first < group ? end : first + group;
    if (p.in_place != 0 &&
        rows.SlotOf(last - 1 - plane.first_slot) == last - 1) {
      continue;  // all rows stay in place
    }
    WithDType(rows.to.dtype, [&](auto to) {
      using To = decltype(to);
      if constexpr (CanShareNumbers(To::kValue)) {
        WithDType(rows.from.dtype, [&](auto from) {
          Column<decltype(from), To>{rows, byte}.Store(first, last);
        });
      }
    });
  }
}

}  // namespace kvevict::cuda
