#include "core/evict/saved_rows.h"

#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

constexpr size_t kSavedAlignment = 64;  // of each part, counted from the start

CheckedSize CountBytes(const SavedLayer& layer) {
  const size_t n = layer.lists_differ ? layer.n_lists : 0;
  return CheckedSize(n * sizeof(uint32_t)).AlignUp(kSavedAlignment);
}

CheckedSize SlotBytes(const SavedLayer& layer) {
  return (CheckedSize(layer.n_lists) *
          (CheckedSize(layer.n_rows) + CheckedSize(1)) *
          CheckedSize(sizeof(int32_t)))
      .AlignUp(kSavedAlignment);
}

CheckedSize PlaneBytes(const SavedLayer& layer, const kvevict_plane& plane) {
  return (CheckedSize(layer.n_rows) * CheckedSize(layer.view.n_kv_heads) *
          CheckedSize(RowBytes(plane)))
      .AlignUp(kSavedAlignment);
}

// The plane of the same rows, packed from `address`.
kvevict_plane PackedPlane(const kvevict_plane& plane, uint32_t n_heads,
                          const uint8_t* address) {
  kvevict_plane packed = plane;
  packed.data = reinterpret_cast<uintptr_t>(address);
  packed.head_stride_bytes = RowBytes(plane);
  packed.token_stride_bytes = int64_t{n_heads} * RowBytes(plane);
  packed.element_stride_bytes = 0;
  packed.block_stride_bytes = 0;
  packed.group_stride_bytes = 0;
  packed.group_elems = 0;
  packed.address_table = 0;
  packed.address_table_len = 0;
  return packed;
}

}  // namespace

CheckedSize SavedBytes(const SavedLayer& layer) {
  CheckedSize bytes = CountBytes(layer) + SlotBytes(layer);
  ForEachPlane(
      layer.view,
      [&](const kvevict_plane& plane) {
        bytes = bytes + PlaneBytes(layer, plane);
      },
      layer.shared_companions);
  return bytes;
}

SavedRows::Entry* SavedRows::Add(const SavedLayer& layer) {
  static_assert(kMaxCompanions <= kMostPlanes);
  if (n_layers_ == kMostLayers ||
      n_planes_ + layer.view.n_companions > kMostPlanes) {
    return nullptr;
  }
  const kvevict_view& view = from_[n_layers_] = layer.view;
  const auto take = [&](CheckedSize bytes) {
    uint8_t* const part = memory_;
    memory_ += bytes.value();
    return part;
  };
  auto* const counts = reinterpret_cast<uint32_t*>(take(CountBytes(layer)));
  auto* const slots = reinterpret_cast<int32_t*>(take(SlotBytes(layer)));
  const auto packed = [&](const kvevict_plane& plane) {
    return PackedPlane(plane, view.n_kv_heads, take(PlaneBytes(layer, plane)));
  };
  kvevict_view& rows = to_[n_layers_] = KVEVICT_VIEW_INIT;
  rows.n_kv_heads = view.n_kv_heads;
  rows.companions = companions_ + n_planes_;
  rows.n_companions = view.n_companions;
  rows.k = view.k;
  rows.v = view.v;
  if (IsPresent(view.k)) rows.k = packed(view.k);
  if (IsPresent(view.v)) rows.v = packed(view.v);
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const kvevict_plane& plane = view.companions[i];
    const bool moves =
        (layer.shared_companions >> i & 1) == 0 && HasRows(view, plane);
    companions_[n_planes_++] = moves ? packed(plane) : plane;
  }
  Entry& entry = entries_[n_layers_++] = Entry();
  entry.list.slots = slots;
  entry.list.stride = layer.n_rows + 1;
  entry.list.counts = layer.lists_differ ? counts : nullptr;
  entry.move.view = &view;
  entry.move.keep = {slots, layer.n_lists,
                     ListCounts(layer.n_rows, entry.list.counts),
                     uint64_t{layer.n_rows} + 1};
  entry.move.shared_companions = layer.shared_companions;
  entry.move.destination = &rows;
  return &entry;
}

}  // namespace kvevict
