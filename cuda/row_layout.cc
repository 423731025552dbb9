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
  // A ring without blocks is one block.
  if (view.block_size == 0) {
    layout.block_size = view.ring_slots;
    layout.block_stride = 0;
  }
  return layout;
}

namespace {

// The bytes between the loads of a row, if these are at multiples of 16;
// otherwise 0.
uint32_t BytesBetweenLoads(const RowLayout& layout, DType dtype) {
  // There are two elements to a byte, in order.
  if (InfoOf(dtype).packing == Packing::kPairs) return 16;
  const uint32_t element_bytes = ElementBytes(dtype);
  if (element_bytes == 0) return 0;
  if (layout.element_stride != int64_t{element_bytes}) return 0;
  if (layout.group_elems == 0) return 16;
  const auto stride = static_cast<uint64_t>(layout.group_stride);
  const bool is_load = uint64_t{layout.group_elems} * element_bytes == 16;
  return is_load && stride <= UINT32_MAX ? static_cast<uint32_t>(stride) : 0;
}

}  // namespace

RowNumbers NumbersOf(const kvevict_view& view, const kvevict_plane& plane,
                     bool minimum) {
  const kvevict_plane* const of = FindNumbers(view, plane, minimum);
  if (of == nullptr) return {};
  const RowLayout layout = LayoutOf(view, *of);
  RowNumbers numbers{};
  numbers.base = BaseOf(*of);
  numbers.row_stride = layout.row_stride;
  numbers.head_stride = layout.head_stride;
  numbers.block_stride = layout.block_stride;
  numbers.far = layout.far;
  numbers.is_constant = IsConstant(view, *of) ? 1 : 0;
  numbers.dtype = static_cast<uint32_t>(of->dtype);
  numbers.group_tokens = static_cast<uint32_t>(of->group_tokens);
  return numbers;
}

RecentRows RecentRowsOf(const kvevict_view& view, const kvevict_plane& plane) {
  const kvevict_plane* const of = FindRecent(view, plane);
  if (of == nullptr) return {};
  return {of->data, of->token_stride_bytes, of->head_stride_bytes,
          view.first_recent, static_cast<uint32_t>(of->dtype)};
}

bool HaveLikeNumbers(const kvevict_view& a, const kvevict_plane& plane_a,
                     const kvevict_view& b, const kvevict_plane& plane_b) {
  const auto alike = [&](bool minimum) {
    const RowNumbers x = NumbersOf(a, plane_a, minimum);
    const RowNumbers y = NumbersOf(b, plane_b, minimum);
    return (x.base == 0) == (y.base == 0) && x.row_stride == y.row_stride &&
           x.head_stride == y.head_stride && x.block_stride == y.block_stride &&
           x.far == y.far && x.is_constant == y.is_constant &&
           x.dtype == y.dtype && x.group_tokens == y.group_tokens;
  };
  const RecentRows x = RecentRowsOf(a, plane_a), y = RecentRowsOf(b, plane_b);
  return alike(false) && alike(true) && (x.base == 0) == (y.base == 0) &&
         x.row_stride == y.row_stride && x.head_stride == y.head_stride &&
         x.first == y.first && x.dtype == y.dtype;
}

bool ShareNumbers(const kvevict_view& a, const kvevict_plane& plane_a,
                  const kvevict_view& b, const kvevict_plane& plane_b) {
  const auto base_of = [](const kvevict_view& view, const kvevict_plane& plane,
                          bool minimum) {
    return NumbersOf(view, plane, minimum).base;
  };
  return HaveLikeNumbers(a, plane_a, b, plane_b) &&
         base_of(a, plane_a, false) == base_of(b, plane_b, false) &&
         base_of(a, plane_a, true) == base_of(b, plane_b, true) &&
         RecentRowsOf(a, plane_a).base == RecentRowsOf(b, plane_b).base;
}

bool HaveLikeBiases(const kvevict_view& a, const kvevict_view& b) {
  const kvevict_plane* const x = BiasesOf(a);
  const kvevict_plane* const y = BiasesOf(b);
  if (x == nullptr || y == nullptr) return x == y;
  return SameLayout(LayoutOf(a, *x), LayoutOf(b, *y));
}

CacheRows RowsOf(const kvevict_view& view, const kvevict_plane& plane) {
  CacheRows rows{};
  rows.layout = LayoutOf(view, plane);
  rows.scale = NumbersOf(view, plane, false);
  rows.minimum = NumbersOf(view, plane, true);
  rows.recent = RecentRowsOf(view, plane);
  rows.dtype = static_cast<uint32_t>(plane.dtype);
  rows.n_elements = rows.head_dim = plane.head_dim;
  const RowLayout& layout = rows.layout;
  const auto dtype = static_cast<DType>(plane.dtype);
  const uint64_t row_bytes = PackedBytes(dtype, plane.head_dim);
  const uint64_t all = plane.data | row_bytes |
                       static_cast<uint64_t>(layout.row_stride) |
                       static_cast<uint64_t>(layout.head_stride) |
                       static_cast<uint64_t>(layout.block_stride) |
                       static_cast<uint64_t>(layout.group_stride);
  rows.wide = all % 16 == 0 && !KindsOf(rows).token_groups
                  ? BytesBetweenLoads(layout, dtype)
                  : 0;
  rows.lanes = LanesOfRow(rows.wide != 0 ? static_cast<uint32_t>(row_bytes / 16)
                                         : plane.head_dim);
  return rows;
}

}  // namespace kvevict::cuda
