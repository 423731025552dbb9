// Addresses of rows, and offsets of elements in them.
#ifndef KVEVICT_CUDA_KERNELS_ROW_ADDRESS_CUH_
#define KVEVICT_CUDA_KERNELS_ROW_ADDRESS_CUH_

#include "device.cuh"
#include "params.h"

namespace kvevict::cuda {

// The row of a ring for a slot counted from its first row.
KV_DEVICE uint32_t RingRow(const RowLayout& layout, uint32_t slot) {
  if (layout.ring_slots == 0) return slot;
  const uint32_t left = layout.ring_slots - layout.ring_first;
  return slot < left ? slot + layout.ring_first : slot - left;
}

// The address of a head's block, whose table entry is the page-th, far or not.
KV_DEVICE uint64_t FarBlock(const RowLayout& layout, uint64_t base,
                            uint64_t block_table, uint32_t head,
                            uint32_t page) {
  const uint64_t entry = uint64_t{head} * layout.table_head_stride + page;
  const bool has_ids = layout.far == 0 || (layout.far & kFarIds) != 0;
  const int64_t id = has_ids ? LoadGlobal<int32_t>(block_table + entry * 4)
                             : static_cast<int64_t>(entry);
  if ((layout.far & kFarAddresses) == 0) return base + id * layout.block_stride;
  return LoadGlobal<uint64_t>(base + id * 8) + layout.block_stride;
}

// The row of a slot. `base` is slot 0, head 0. block_table is i32, for paged
// rows only.
KV_DEVICE uint64_t RowAddress(const RowLayout& layout, uint64_t base,
                              uint64_t block_table, uint32_t head,
                              uint32_t slot) {
  if (layout.block_size == 0) {
    return base + head * layout.head_stride + slot * layout.row_stride;
  }
  if (layout.far != 0) slot = RingRow(layout, slot);
  const uint32_t page = slot / layout.block_size;
  const uint32_t row = slot - page * layout.block_size;
  uint64_t block;
  if (layout.far != 0) {
    block = FarBlock(layout, base, block_table, head, page);
  } else {
    const uint64_t entry = uint64_t{head} * layout.table_head_stride + page;
    const int64_t id = LoadGlobal<int32_t>(block_table + entry * 4);
    block = base + id * layout.block_stride;
  }
  return block + head * layout.head_stride + row * layout.row_stride;
}

// The offset of an element from the row's first.
KV_DEVICE int64_t ElementOffset(const RowLayout& layout, uint32_t element) {
  if (layout.group_elems == 0) return element * layout.element_stride;
  const uint32_t group = element / layout.group_elems;
  return group * layout.group_stride +
         (element - group * layout.group_elems) * layout.element_stride;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROW_ADDRESS_CUH_
