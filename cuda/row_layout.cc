#include "cuda/row_layout.h"

#include "core/dtype.h"

namespace kvevict::cuda {

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
                       static_cast<uint64_t>(layout.block_stride);
  rows.wide =
      layout.element_stride == int64_t{element_bytes} && all % 16 == 0 ? 1 : 0;
  rows.lanes = LanesOfRow(rows.wide != 0 ? row_bytes / 16 : plane.head_dim);
  return rows;
}

}  // namespace kvevict::cuda
