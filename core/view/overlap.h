// Whether caches share memory.
#ifndef KVEVICT_CORE_VIEW_OVERLAP_H_
#define KVEVICT_CORE_VIEW_OVERLAP_H_

#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "core/status.h"
#include "core/view/block_numbers.h"
#include "core/view/extent.h"

namespace kvevict {

// The most companions of a view, as many as a 64-bit set has room for.
inline constexpr uint32_t kMaxCompanions = 64;

// A range from its first byte to its last.
struct Reach {
  uint64_t first = 1, last = 0;
  bool Meets(const Reach& other) const {
    return first <= other.last && other.first <= last;
  }
};

// The ranges of K, of V and of all companions. Usually they are far apart from
// those of others.
struct Reaches {
  Reach of[3];

  // Companions follow K and V.
  const Reach& OfPlane(uint32_t i) const { return of[i < 2 ? i : 2]; }
  bool Meets(const Reach& other) const {
    return of[0].Meets(other) || of[1].Meets(other) || of[2].Meets(other);
  }
  bool Meets(const Reaches& other) const {
    return Meets(other.of[0]) || Meets(other.of[1]) || Meets(other.of[2]);
  }
};

// The rows of one layer: the slots of a valid view that a call reads or writes.
struct LayerCache {
  const kvevict_view* view = nullptr;
  uint32_t number = 0;  // messages say views[number]
  // The first layer with the same cache, usually the layer itself.
  uint32_t owner = 0;
  ListCounts tokens;  // per KV head; `each` only where the host can read it
  uint32_t first_slot = 0;
  bool is_destination = false;  // a destination, not views[number]
  // Whether the host can read the address tables and the block table. If so,
  // also the ids of the blocks in use.
  bool knows_addresses = false;
  bool knows_blocks = false;
  int32_t lowest_block = 0;
  int32_t highest_block = 0;
  Reaches reach;
  // Bit i: companion i is also a plane of an earlier layer.
  uint64_t shared_companions = 0;

  uint32_t n_recent = 0;  // slots after `tokens`, in recent planes

  bool IsEmpty() const { return tokens.most <= first_slot; }
  BlockTables blocks() const { return {*view, tokens, first_slot}; }
};

LayerCache CacheOf(const kvevict_view& view, uint32_t number,
                   const ListCounts& tokens, bool on_host,
                   uint32_t first_slot = 0);

// The axes along which the slots of a cache lie in n_blocks blocks of a plane.
PlaneAxes AxesOf(const LayerCache& cache, const kvevict_plane& plane,
                 int64_t n_blocks);

// Whether two views are the same cache, plane by plane and block by block.
bool AreOne(const kvevict_view& a, const kvevict_view& b);

// Sets what the layers' caches share: owners and shared companions.
void FindShared(std::span<LayerCache> layers);

// Says that layer l cannot have the first of these companions, because an
// earlier layer has it too, and `why`.
Status SharesCompanion(std::span<const LayerCache> layers, uint32_t l,
                       uint64_t companions, const char* why);

// Checks that layers share no byte except what FindShared() found. Messages
// call them array[number].
//
// The check is exact, with four exceptions. A block in use counts as full, with
// rows of every head; so do contiguous rows from first_slot up to the longest
// head. Planes whose strides have so little in common that it takes over 2^16
// steps to tell are refused; no layout of an engine comes near. If the host
// cannot read block tables, planes of paged caches are compared only if they
// have one table and one block stride, and only within a block. Blocks with
// addresses are assumed to be apart, as the header requires: planes are
// compared only within blocks at the same entry of the same table.
Status CheckApart(const char* array, std::span<const LayerCache> layers);

// Finds what caches share, and checks that no cache is given twice or overlaps
// another.
Status CheckDistinct(const char* array, std::span<LayerCache> layers);

// Whether planes of two caches share a byte, with the exceptions above. Returns
// true if it is too intricate to tell.
bool Overlap(const LayerCache& a, const LayerCache& b);

// Checks that bytes of memory, called `name` in messages, overlap no K, V or
// companion of caches, as CheckApart() does and with the same exceptions.
Status CheckApartFrom(const char* name, const void* memory, uint64_t n_bytes,
                      const char* array, std::span<const LayerCache> caches);

// Checks the same for the planes of one view.
Status CheckPlanesApart(const LayerCache& cache);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_OVERLAP_H_
