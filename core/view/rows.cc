// Finds where the rows of planes lie, and the companions that they have.
#include "core/dtype.h"
#include "core/parts.h"
#include "core/view/extent.h"
#include "core/view/view.h"
#include "core/view/view_roles.h"

namespace kvevict {
namespace {

void FillPlane(const kvevict_view& view, kvevict_dtype dtype, uint32_t head_dim,
               kvevict_plane* plane) {
  const bool has_shape = plane->dtype != KVEVICT_DTYPE_OPAQUE ||
                         plane->head_dim != 0 || plane->row_bytes != 0;
  if (!IsPresent(*plane) || has_shape) return;
  plane->dtype = dtype;
  plane->head_dim = head_dim;
  if (plane->token_stride_bytes != 0 || plane->head_stride_bytes != 0) return;
  plane->head_stride_bytes = RowBytes(*plane);
  plane->token_stride_bytes =
      plane->head_stride_bytes * static_cast<int64_t>(view.n_kv_heads);
  const bool by_ids = view.block_size != 0 && plane->address_table == 0;
  if (by_ids && plane->block_stride_bytes == 0) {
    plane->block_stride_bytes =
        plane->token_stride_bytes * static_cast<int64_t>(view.block_size);
  }
}

// The rows without their scale and minimum.
RowSource BareRows(const kvevict_view& view, const kvevict_plane& plane,
                   uint32_t head) {
  RowSource rows;
  // With addresses: where the rows of a block at `origin` would be. It is not
  // NULL.
  rows.base = reinterpret_cast<const uint8_t*>(
      plane.address_table + plane.data +
      head * static_cast<uint64_t>(plane.head_stride_bytes));
  rows.row_stride = plane.token_stride_bytes;
  rows.dtype = static_cast<DType>(plane.dtype);
  rows.element_stride = ElementStride(plane);
  rows.n_elements = plane.head_dim;
  rows.group_elems = plane.group_elems;
  rows.group_stride = plane.group_stride_bytes;
  rows.block_stride = plane.block_stride_bytes;
  rows.block_size = view.block_size;
  const uint64_t first_entry = head * view.block_table_head_stride;
  if (view.block_table != nullptr) {
    rows.block_table = view.block_table + first_entry;
  }
  if (IsPlain(view, plane)) return rows;
  rows.is_plain = false;
  rows.ring_slots = view.ring_slots;
  rows.ring_first = view.ring_first;
  if (plane.address_table != 0) {
    rows.addresses = reinterpret_cast<const uint64_t*>(plane.address_table);
    rows.origin = plane.address_table;
    if (view.block_table == nullptr) rows.addresses += first_entry;
  }
  // A ring without blocks is one block.
  if (view.block_size == 0) rows.block_size = view.ring_slots;
  return rows;
}

// Adds the rows of a plane of `view` that are not quantized.
void AddRecent(const kvevict_view& view, const kvevict_plane& plane,
               uint32_t head, RowSource* rows) {
  const kvevict_plane* const recent = FindRecent(view, plane);
  if (recent == nullptr) return;
  rows->recent = {reinterpret_cast<const uint8_t*>(
                      recent->data +
                      head * static_cast<uint64_t>(recent->head_stride_bytes)),
                  recent->token_stride_bytes, recent->head_stride_bytes,
                  view.first_recent, static_cast<DType>(recent->dtype)};
  if (rows->block_size != 0) rows->is_plain = false;
}

}  // namespace

uint32_t RowBytes(const kvevict_plane& plane) {
  if (plane.dtype == KVEVICT_DTYPE_OPAQUE) return plane.row_bytes;
  return static_cast<uint32_t>(
      PackedBytes(static_cast<DType>(plane.dtype), plane.head_dim));
}

uint32_t PieceBytes(const kvevict_plane& plane) {
  const uint32_t row_bytes = RowBytes(plane);
  if (plane.dtype == KVEVICT_DTYPE_OPAQUE) return row_bytes;
  const uint32_t element_bytes = ElementBytes(static_cast<DType>(plane.dtype));
  if (plane.group_elems != 0) return plane.group_elems * element_bytes;
  return ElementStride(plane) == int64_t{element_bytes} ? row_bytes
                                                        : element_bytes;
}

RowPieces PiecesOf(const kvevict_plane& plane, uint32_t piece_bytes) {
  RowPieces pieces;
  pieces.n = RowBytes(plane) / piece_bytes;
  if (pieces.n == 1) return pieces;
  const uint32_t largest = PieceBytes(plane);
  if (plane.group_elems != 0) {
    pieces.in_group = largest / piece_bytes;
    pieces.group_stride = plane.group_stride_bytes;
    pieces.stride = piece_bytes;
  } else {
    pieces.stride =
        largest == RowBytes(plane) ? piece_bytes : ElementStride(plane);
  }
  return pieces;
}

int64_t ElementStride(const kvevict_plane& plane) {
  if (plane.element_stride_bytes != 0) return plane.element_stride_bytes;
  return ElementBytes(static_cast<DType>(plane.dtype));
}

kvevict_plane WithPackedStrides(kvevict_plane rows, int64_t row_bytes,
                                uint32_t n_rows) {
  if (rows.token_stride_bytes == 0) rows.token_stride_bytes = row_bytes;
  if (rows.head_stride_bytes == 0) rows.head_stride_bytes = row_bytes * n_rows;
  return rows;
}

void FillFrom(const kvevict_layer_geometry& g, kvevict_view* view) {
  if (view->n_kv_heads == 0) view->n_kv_heads = g.n_kv_heads;
  FillPlane(*view, g.k_dtype, g.k_head_dim, &view->k);
  FillPlane(*view, g.v_dtype, g.v_head_dim, &view->v);
}

RowSource HeadRows(const kvevict_view& view, const kvevict_plane& plane,
                   uint32_t head) {
  RowSource rows = BareRows(view, plane, head);
  if (!InfoOf(rows.dtype).is_quantized()) return rows;
  AddRecent(view, plane, head, &rows);
  for (const bool minimum : {false, true}) {
    const kvevict_plane* numbers = FindNumbers(view, plane, minimum);
    if (numbers == nullptr) continue;
    const RowSource of = BareRows(view, *numbers, head);
    (minimum ? rows.minimum : rows.scale) = {of.base,
                                             of.row_stride,
                                             of.block_stride,
                                             of.addresses,
                                             of.origin,
                                             of.dtype,
                                             of.is_plain,
                                             IsConstant(view, *numbers),
                                             numbers->head_stride_bytes};
    (minimum ? rows.minimum : rows.scale).group_rows =
        static_cast<uint32_t>(numbers->group_tokens);
  }
  return rows;
}

RowSource HeadBiases(const kvevict_view& view, uint32_t head) {
  const kvevict_plane* const plane = BiasesOf(view);
  return plane == nullptr ? RowSource() : BareRows(view, *plane, head);
}

uint64_t HeadBytes(const kvevict_view& view, uint32_t n_tokens,
                   uint32_t n_recent, uint64_t left_out) {
  uint64_t bytes = 0;
  ForEachPlane(
      view,
      [&](const kvevict_plane& plane) {
        bytes +=
            uint64_t{RowsOfSlots(plane, n_tokens - n_recent)} * RowBytes(plane);
      },
      left_out);
  for (uint32_t i = 0; n_recent > 0 && i < view.n_companions; ++i) {
    if (!IsRecent(view.companions[i])) continue;
    bytes += uint64_t{n_recent} * RowBytes(view.companions[i]);
  }
  return bytes;
}

const kvevict_plane* FindRole(const kvevict_view& view, kvevict_role role) {
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (view.companions[i].role == role) return &view.companions[i];
  }
  return nullptr;
}

Status CheckScales(const kvevict_view& view, bool reads_keys,
                   bool reads_values) {
  const auto check = [&](kvevict_role role) {
    const RoleInfo& of = kRoles[role];
    const DTypeInfo& info = InfoOf(static_cast<DType>((view.*of.rows).dtype));
    if (info.scale != Scale::kNeeded || FindRole(view, role) != nullptr) {
      return Status();
    }
    return InvalidArgument(
        "companions: none has role %s, without which %s.dtype %s cannot be "
        "read",
        of.name, of.rows_name, info.name);
  };
  if (reads_keys) KV_RETURN_IF_ERROR(check(KVEVICT_ROLE_KEY_SCALE));
  return reads_values ? check(KVEVICT_ROLE_VALUE_SCALE) : Status();
}

// The companion with that part of one of a valid view's planes.
static const kvevict_plane* FindPart(const kvevict_view& view,
                                     const kvevict_plane& plane, int part) {
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const RoleInfo& role = kRoles[view.companions[i].role];
    if (role.rows == nullptr || &(view.*role.rows) != &plane) continue;
    if (role.part == part) return &view.companions[i];
  }
  return nullptr;
}

const kvevict_plane* FindNumbers(const kvevict_view& view,
                                 const kvevict_plane& plane, bool minimum) {
  return FindPart(view, plane, minimum ? RoleInfo::kMinimum : RoleInfo::kScale);
}

const kvevict_plane* FindRecent(const kvevict_view& view,
                                const kvevict_plane& plane) {
  return FindPart(view, plane, RoleInfo::kRecent);
}

uint32_t FirstRecent(const kvevict_view& view) {
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (IsRecent(view.companions[i])) return view.first_recent;
  }
  return UINT32_MAX;
}

RowChange GroupedRows(const kvevict_view& view) {
  const auto is_grouped = [&](kvevict_role role) {
    const kvevict_plane* const scale = FindRole(view, role);
    return scale != nullptr && scale->group_tokens != 0;
  };
  return {is_grouped(KVEVICT_ROLE_KEY_SCALE),
          is_grouped(KVEVICT_ROLE_VALUE_SCALE)};
}

}  // namespace kvevict
