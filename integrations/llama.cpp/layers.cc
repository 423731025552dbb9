#include "layers.h"

namespace kvevict::llama {

kvevict_dtype Rows::dtype() const {
  switch (type) {
    case GGML_TYPE_F32:
      return KVEVICT_DTYPE_F32;
    case GGML_TYPE_F16:
      return KVEVICT_DTYPE_F16;
    case GGML_TYPE_BF16:
      return KVEVICT_DTYPE_BF16;
    case GGML_TYPE_Q8_0:
      return KVEVICT_DTYPE_Q8_0;
    case GGML_TYPE_Q4_0:
      return KVEVICT_DTYPE_Q4_0;
    default:
      return KVEVICT_DTYPE_OPAQUE;
  }
}

namespace {

kvevict_plane Plane(const Rows& rows, uint64_t data, uint64_t n_cells) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = data;
  plane.dtype = rows.dtype();
  const auto type = static_cast<ggml_type>(rows.type);
  const auto head_bytes =
      static_cast<int64_t>(ggml_row_size(type, rows.head_dim));
  if (plane.dtype == KVEVICT_DTYPE_OPAQUE) {
    plane.row_bytes = static_cast<uint32_t>(head_bytes);
  } else {
    plane.head_dim = rows.head_dim;
  }
  if (rows.transposed != 0) {
    const auto element_bytes = static_cast<int64_t>(ggml_type_size(type));
    plane.token_stride_bytes = element_bytes;
    plane.element_stride_bytes = static_cast<int64_t>(n_cells) * element_bytes;
    plane.head_stride_bytes = rows.head_dim * plane.element_stride_bytes;
  } else {
    plane.token_stride_bytes = static_cast<int64_t>(rows.row_bytes);
    plane.head_stride_bytes = head_bytes;
  }
  return plane;
}

}  // namespace

kvevict_view CacheView(const LayerShape& shape, uint64_t k, uint64_t v,
                       uint64_t n_cells) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = shape.n_kv_heads;
  view.k = Plane(shape.k, k, n_cells);
  if (shape.v.head_dim > 0) view.v = Plane(shape.v, v, n_cells);
  return view;
}

}  // namespace kvevict::llama
