// Brings the window's rows and reference queries together for
// window_attention.cu, and lists what each row sees.
#include "list_rows.h"

#include "counts.cuh"
#include "device.cuh"
#include "slots.cuh"

namespace kvevict::cuda {

namespace {

// What row r of a KV head sees, and its factor.
KV_DEVICE ListedRow RowOf(const ListRowsParams& p, const ListRowsLayer& layer,
                          uint32_t kv_head, uint32_t r) {
  const uint32_t n =
      CountOf(p.tokens, layer.first_count, kv_head, layer.n_tokens);
  const uint32_t n_past = n < p.window_tokens ? 0 : n - p.window_tokens;
  uint32_t n_before = n;
  uint32_t n_visible = n;
  if (r < p.n_own) {
    n_before = n_past + r;
    n_visible = n_before + 1;
  } else if (layer.positions != 0) {
    const uint32_t list = p.slot_lists == 1 ? 0 : kv_head;
    const uint32_t position =
        LoadGlobal<uint32_t>(layer.positions + uint64_t{4} * (r - p.n_own));
    n_before = FirstFrom(layer.slots, p.kept, list, n, position);
    n_visible = FirstFrom(layer.slots, p.kept, list, n, position + 1);
  }
  if (p.past_only != 0 && n_visible > n_past) n_visible = n_past;
  float weight = r < p.n_own ? p.own_factor : p.reference_factor;
  if (p.weigh_by_past != 0) weight *= static_cast<float>(n_before);
  return {n_visible, weight};
}

template <typename T>
KV_DEVICE void CopyRow(uint64_t from, int64_t stride, uint64_t to, uint32_t n) {
  for (uint32_t i = threadIdx.x; i < n; i += kListRowsThreads) {
    StoreGlobal(to + uint64_t{i} * sizeof(T),
                LoadGlobal<T>(from + static_cast<uint64_t>(i * stride)));
  }
}

}  // namespace

// A block has one row of one query head. Moves each query once.
KV_KERNEL(list_rows, ListRowsParams, kListRowsThreads, 4) {
  const uint32_t r = blockIdx.x;
  const uint32_t head = blockIdx.y;
  const ListRowsLayer& layer = p.layers[blockIdx.z];
  const uint32_t n_rows = gridDim.x;
  const uint64_t of_layer = uint64_t{blockIdx.z} * gridDim.y;
  if (head % p.group == 0 && threadIdx.x == 0) {
    const ListedRow row = RowOf(p, layer, head / p.group, r);
    const uint64_t place = (of_layer + head) / p.group * n_rows + r;
    StoreGlobal(p.list + place * sizeof(ListedRow), row.n_visible);
    StoreGlobal(p.list + place * sizeof(ListedRow) + 4, row.weight);
  }
  const bool is_own = r < p.n_own;
  const ListedSource& source = is_own ? p.window : p.reference;
  uint32_t stored = r - p.n_own;
  if (is_own) {
    stored = p.first_row + r;
    if (stored >= p.ring_rows) stored -= p.ring_rows;
  }
  const uint64_t from = (is_own ? layer.window : layer.reference) +
                        static_cast<uint64_t>(head * source.head_stride +
                                              stored * source.row_stride);
  const uint64_t to = p.rows + ((of_layer + head) * n_rows + r) * p.n_elements *
                                   p.element_bytes;
  if (p.element_bytes == 2) {
    CopyRow<uint16_t>(from, source.element_stride, to, p.n_elements);
  } else {
    CopyRow<uint32_t>(from, source.element_stride, to, p.n_elements);
  }
}

}  // namespace kvevict::cuda
