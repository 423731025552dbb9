#include "cuda/row_layout.h"

#include "core/dtype.h"

namespace kvevict::cuda {

RowLayout LayoutOf(const kvevict_view& view, const kvevict_plane& plane) {
  const bool opaque = plane.dtype == KVEVICT_DTYPE_OPAQUE;
  RowLayout layout{};
  layout.row_stride = plane.token_stride_bytes;
  layout.head_stride = plane.head_stride_bytes;
  layout.element_stride = opaque ? 0 : ElementStride(plane);
  layout.block_stride = plane.block_stride_bytes;
  layout.block_size = view.block_size;
  layout.table_head_stride =
      static_cast<uint32_t>(view.block_table_head_stride);
  layout.group_stride = plane.group_stride_bytes;
  layout.group_elems = plane.group_elems;
  if (IsPlain(view, plane)) return layout;
  layout.far = kFar;
  if (view.block_table != nullptr) layout.far |= kFarIds;
  if (plane.address_table != 0) {
    layout.far |= kFarAddresses;
    layout.block_stride = static_cast<int64_t>(plane.data);
  }
  layout.ring_slots = view.ring_slots;
  layout.ring_first = view.ring_first;
  // A ring without blocks is all in one.
  if (view.block_size == 0) {
    layout.block_size = view.ring_slots;
    layout.block_stride = 0;
  }
  return layout;
}

namespace {

// Of rows that elements of so many bytes make, at multiples of 16; otherwise 0.
uint32_t BytesBetweenLoads(const RowLayout& layout, uint32_t element_bytes) {
  if (layout.element_stride != int64_t{element_bytes}) return 0;
  if (layout.group_elems == 0) return 16;
  const auto stride = static_cast<uint64_t>(layout.group_stride);
  const bool is_load = uint64_t{layout.group_elems} * element_bytes == 16;
  return is_load && stride <= UINT32_MAX ? static_cast<uint32_t>(stride) : 0;
}

}  // namespace

CacheRows RowsOf(const kvevict_view& view, const kvevict_plane& plane) {
  CacheRows rows{};
  rows.layout = LayoutOf(view, plane);
  rows.dtype = static_cast<uint32_t>(plane.dtype);
  rows.head_dim = plane.head_dim;
  const RowLayout& layout = rows.layout;
  const uint32_t element_bytes = ElementBytes(static_cast<DType>(plane.dtype));
  const uint32_t row_bytes = plane.head_dim * element_bytes;
  const uint64_t all = plane.data | row_bytes |
                       static_cast<uint64_t>(layout.row_stride) |
                       static_cast<uint64_t>(layout.head_stride) |
                       static_cast<uint64_t>(layout.block_stride) |
                       static_cast<uint64_t>(layout.group_stride);
  rows.wide = all % 16 == 0 ? BytesBetweenLoads(layout, element_bytes) : 0;
  rows.lanes = LanesOfRow(rows.wide != 0 ? row_bytes / 16 : plane.head_dim);
  return rows;
}

}  // namespace kvevict::cuda
