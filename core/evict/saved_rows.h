// Rows that evictions remove from caches, saved in the caller's memory: first
// those of the layers that lose tokens, then those of the layers' sums, one
// after the other.
//
//   u32 counts [n_lists]             only if lists differ
//   i32 slots [n_lists, n_rows + 1]  see EvictedJob
//   rows [n_rows, n_kv_heads]        of each plane, packed
#ifndef KVEVICT_CORE_EVICT_SAVED_ROWS_H_
#define KVEVICT_CORE_EVICT_SAVED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/checked_math.h"

namespace kvevict {

// What is saved for one layer.
struct SavedLayer {
  kvevict_view view = KVEVICT_VIEW_INIT;
  // bits of companions saved with another layer
  uint64_t shared_companions = 0;
  uint32_t n_lists = 1;
  bool lists_differ = false;
  uint32_t n_rows = 0;  // rows in the longest list
};

CheckedSize SavedBytes(const SavedLayer& layer);

// Lays out saved rows for some layers at a time, since the views of them take
// memory.
class SavedRows {
 public:
  explicit SavedRows(uint8_t* memory) : memory_(memory) {}

  // Adds the next layer. Its `move` copies from the layer's view to the memory;
  // `list` lists the evicted slots. Returns nullptr if there is no room before
  // a Clear().
  struct Entry {
    EvictedJob list;
    MoveJob move;
    uint32_t layer = 0;
    bool is_sums = false;
  };
  Entry* Add(const SavedLayer& layer);
  // Leaves the next layer's place in the memory empty.
  void Skip(const SavedLayer& layer) { memory_ += SavedBytes(layer).value(); }
  void Clear() { n_layers_ = n_planes_ = 0; }

  std::span<const Entry> entries() const {
    return std::span(entries_).first(n_layers_);
  }

 private:
  static constexpr uint32_t kMostLayers = 32;
  // companions in all layers together
  static constexpr uint32_t kMostPlanes = 128;

  uint8_t* memory_;
  uint32_t n_layers_ = 0;
  uint32_t n_planes_ = 0;
  Entry entries_[kMostLayers];
  kvevict_view from_[kMostLayers];
  kvevict_view to_[kMostLayers];
  kvevict_plane companions_[kMostPlanes];
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_SAVED_ROWS_H_
