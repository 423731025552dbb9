// Whether caches share memory.
#ifndef KVEVICT_CORE_VIEW_OVERLAP_H_
#define KVEVICT_CORE_VIEW_OVERLAP_H_

#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "core/status.h"
#include "core/view/block_numbers.h"

namespace kvevict {

// Of a view; what a set of them has room for.
inline constexpr uint32_t kMaxCompanions = 64;

// One layer's rows: slots of a valid view that a call reads or writes.
struct LayerCache {
  const kvevict_view* view = nullptr;
  uint32_t number = 0;  // of views[number], for whoever reads a message
  // The first layer with the same cache, mostly the layer itself.
  uint32_t owner = 0;
  ListCounts tokens;  // per KV head; `each` only where the host can read it
  uint32_t first_slot = 0;
  bool is_destination = false;  // where rows go, not views[number]
  // Whether the host can read address tables, and the block table; then the ids of the
  // blocks in use.
  bool knows_addresses = false;
  bool knows_blocks = false;
  int32_t lowest_block = 0;
  int32_t highest_block = 0;
  // Of K and V, the first byte and the last one: mostly they are far apart.
  struct Reach {
    uint64_t first = 1, last = 0;
    bool Meets(const Reach& other) const {
      return first <= other.last && other.first <= last;
    }
  } reach[2];
  // Bit i: companion i is a plane of an earlier layer too.
  uint64_t shared_companions = 0;

  uint32_t n_recent = 0;  // slots behind `tokens`, in recent planes

  bool IsEmpty() const { return tokens.most <= first_slot; }
  BlockTables blocks() const { return {*view, tokens, first_slot}; }
};

LayerCache CacheOf(const kvevict_view& view, uint32_t number,
                   const ListCounts& tokens, bool on_host,
                   uint32_t first_slot = 0);

// Whether two views are one, plane by plane and block by block.
bool AreOne(const kvevict_view& a, const kvevict_view& b);

// Sets what the layers' caches have in common: owners and shared companions.
void FindShared(std::span<LayerCache> layers);

// Checks that layers share no byte beside what FindShared() found.
//
// Exact, with four exceptions. A block in use counts as full, with rows of every
// head; so do contiguous rows up to the longest head, from first_slot on. Planes whose strides
// have so little in common that it takes over 2^16 steps to tell are refused; no layout
// of an engine comes near. And where the host cannot read block tables, planes of
// paged caches are compared only if they have one table and one block stride, and then
// within a block. Blocks with addresses are taken to be apart, as the header wants it:
// planes are compared within those that are in the same place of the same table.
// Messages call them array[number].
Status CheckApart(const char* array, std::span<const LayerCache> layers);

// Finds what caches share, and checks that none is another again, nor overlaps it.
Status CheckDistinct(const char* array, std::span<LayerCache> layers);

// Whether K or V of two caches share a byte, with the exceptions above; what is too
// intricate to tell does.
bool Overlap(const LayerCache& a, const LayerCache& b);

// Checks that bytes of memory, which messages call `name`, lie apart from K, V and
// companions of caches, as CheckApart() does, with the same exceptions.
Status CheckApartFrom(const char* name, const void* memory, uint64_t n_bytes,
                      const char* array, std::span<const LayerCache> caches);

// Checks the same of the planes of one view.
Status CheckPlanesApart(const LayerCache& cache);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_OVERLAP_H_
