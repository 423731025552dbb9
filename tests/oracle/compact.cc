#include "tests/oracle/compact.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/oracle/quantized.h"

namespace {

void CompactPlane(const kvevict_view& view, const kvevict_plane& plane,
                  const kvevict_view& to_view, const kvevict_plane& to_plane,
                  uint32_t first_slot, const kvevict_keep_lists& keep) {
  if (!oracle_has_rows(&plane)) return;
  const uint64_t stride = keep.list_stride == 0 ? keep.count : keep.list_stride;
  const uint32_t row_bytes = oracle_row_bytes(&plane);
  for (uint32_t h = 0; h < view.n_kv_heads; ++h) {
    const uint32_t index = keep.n_lists == 1 ? 0 : h;
    const int32_t* list = keep.slots + index * stride;
    const uint32_t n_keep =
        keep.counts == nullptr ? keep.count : keep.counts[index];
    std::vector<uint8_t> kept(size_t{n_keep} * row_bytes);
    for (uint32_t i = 0; i < n_keep; ++i) {
      oracle_get_row(&view, &plane, list[i], h, &kept[size_t{i} * row_bytes]);
    }
    for (uint32_t i = 0; i < n_keep; ++i) {
      oracle_set_row(&to_view, &to_plane, first_slot + i, h,
                     &kept[size_t{i} * row_bytes]);
    }
  }
}

}  // namespace

uint32_t oracle_element_bytes(kvevict_dtype dtype) {
  switch (dtype) {
    case KVEVICT_DTYPE_F32:
      return 4;
    case KVEVICT_DTYPE_F16:
    case KVEVICT_DTYPE_BF16:
      return 2;
    default:
      return 1;
  }
}

bool oracle_has_rows(const kvevict_plane* plane) {
  if (plane->role != KVEVICT_ROLE_NONE && plane->token_stride_bytes == 0 &&
      plane->block_stride_bytes == 0 && plane->address_table == 0) {
    return false;  // one number for all tokens
  }
  return plane->data != 0 || plane->address_table != 0;
}

uint32_t oracle_row_bytes(const kvevict_plane* plane) {
  if (plane->dtype == KVEVICT_DTYPE_OPAQUE) return plane->row_bytes;
  return oracle_packed_bytes(plane->dtype, plane->head_dim);
}

uint8_t* oracle_row_byte(const kvevict_view* view, const kvevict_plane* plane,
                         uint32_t token, uint32_t head, uint32_t byte) {
  const uint32_t size = oracle_element_bytes(plane->dtype);
  const int64_t element_stride =
      plane->element_stride_bytes == 0 ? size : plane->element_stride_bytes;
  if (view->ring_slots != 0) {
    const uint64_t row = uint64_t{token} + view->ring_first;
    token = static_cast<uint32_t>(row % view->ring_slots);
  }
  int64_t offset = 0;
  if (view->block_size == 0) {
    offset += int64_t{token} * plane->token_stride_bytes;
  } else {
    const uint64_t entry =
        head * view->block_table_head_stride + token / view->block_size;
    const int64_t block = view->block_table == nullptr
                              ? static_cast<int64_t>(entry)
                              : view->block_table[entry];
    const auto* const addresses =
        reinterpret_cast<const uint64_t*>(plane->address_table);
    offset += addresses == nullptr ? block * plane->block_stride_bytes
                                   : static_cast<int64_t>(addresses[block]);
    offset += int64_t{token % view->block_size} * plane->token_stride_bytes;
  }
  offset += int64_t{head} * plane->head_stride_bytes;
  const uint32_t element = byte / size;
  if (plane->group_elems == 0) {
    offset += int64_t{element} * element_stride;
  } else {
    offset += int64_t{element / plane->group_elems} * plane->group_stride_bytes;
    offset += int64_t{element % plane->group_elems} * size;
  }
  offset += byte % size;
  return reinterpret_cast<uint8_t*>(plane->data +
                                    static_cast<uint64_t>(offset));
}

uint32_t oracle_run_bytes(const kvevict_plane* plane) {
  const uint32_t size = oracle_element_bytes(plane->dtype);
  const bool is_dense = plane->element_stride_bytes == 0 ||
                        plane->element_stride_bytes == int64_t{size};
  const bool is_whole = is_dense && plane->group_elems == 0;
  return is_whole ? oracle_row_bytes(plane) : size;
}

void oracle_get_row(const kvevict_view* view, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, void* row) {
  const uint32_t run = oracle_run_bytes(plane);
  for (uint32_t b = 0; b < oracle_row_bytes(plane); b += run) {
    std::memcpy(static_cast<uint8_t*>(row) + b,
                oracle_row_byte(view, plane, token, head, b), run);
  }
}

void oracle_set_row(const kvevict_view* view, const kvevict_plane* plane,
                    uint32_t token, uint32_t head, const void* row) {
  const uint32_t run = oracle_run_bytes(plane);
  for (uint32_t b = 0; b < oracle_row_bytes(plane); b += run) {
    std::memcpy(oracle_row_byte(view, plane, token, head, b),
                static_cast<const uint8_t*>(row) + b, run);
  }
}

void oracle_copy_row(const kvevict_view* to, const kvevict_plane* to_plane,
                     uint32_t to_token, const kvevict_view* from,
                     const kvevict_plane* plane, uint32_t token,
                     uint32_t head) {
  std::vector<uint8_t> row(oracle_row_bytes(plane));
  oracle_get_row(from, plane, token, head, row.data());
  oracle_set_row(to, to_plane, to_token, head, row.data());
}

uint32_t oracle_first_difference(const kvevict_view* a,
                                 const kvevict_plane* plane, uint32_t token,
                                 const kvevict_view* b,
                                 const kvevict_plane* of_b, uint32_t token_of_b,
                                 uint32_t head) {
  std::vector<uint8_t> rows[2] = {std::vector<uint8_t>(oracle_row_bytes(plane)),
                                  std::vector<uint8_t>(oracle_row_bytes(of_b))};
  oracle_get_row(a, plane, token, head, rows[0].data());
  oracle_get_row(b, of_b, token_of_b, head, rows[1].data());
  const auto at =
      std::mismatch(rows[0].begin(), rows[0].end(), rows[1].begin());
  return static_cast<uint32_t>(at.first - rows[0].begin());
}

void oracle_compact(const kvevict_view* view, const int32_t* keep,
                    uint32_t n_keep, uint32_t n_keep_lists) {
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = n_keep_lists;
  lists.slots = const_cast<int32_t*>(keep);
  lists.count = n_keep;
  oracle_compact_lists(view, &lists);
}

void oracle_compact_lists(const kvevict_view* view,
                          const kvevict_keep_lists* keep) {
  oracle_compact_to(view, view, 0, keep);
}

void oracle_compact_to(const kvevict_view* view, const kvevict_view* to,
                       uint32_t first_slot, const kvevict_keep_lists* keep) {
  CompactPlane(*view, view->k, *to, to->k, first_slot, *keep);
  CompactPlane(*view, view->v, *to, to->v, first_slot, *keep);
  for (uint32_t i = 0; i < view->n_companions; ++i) {
    CompactPlane(*view, view->companions[i], *to, to->companions[i], first_slot,
                 *keep);
  }
}
