#include "core/view/overlap.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/view/block_grid.h"
#include "core/view/extent.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// Whether a plane has none of the cache's slots.
bool IsEmpty(const LayerCache& cache, const kvevict_plane& plane) {
  return IsRecent(plane) ? cache.n_recent == 0 : cache.IsEmpty();
}

// K, V and companions.
uint32_t PlaneCount(const kvevict_view& view) { return 2 + view.n_companions; }

const kvevict_plane& PlaneAt(const kvevict_view& view, uint32_t i) {
  return i == 0 ? view.k : i == 1 ? view.v : view.companions[i - 2];
}

struct PlaneName {
  explicit PlaneName(uint32_t i) {
    if (i < 2) {
      std::snprintf(text, sizeof(text), "%c", "kv"[i]);
    } else {
      std::snprintf(text, sizeof(text), "companions[%u]", i - 2);
    }
  }
  char text[24];
};

bool IsHidden(const LayerCache& cache, const kvevict_plane& plane) {
  return cache.view->block_size != 0 && !cache.knows_blocks && !IsRecent(plane);
}

// The bytes from the lowest block of a cache to the highest.
Extent ExtentOf(const LayerCache& cache, const kvevict_plane& plane) {
  const int64_t lowest = cache.lowest_block;
  Extent extent(AxesOf(cache, plane, cache.highest_block - lowest + 1));
  extent.Move(lowest * Wide{plane.block_stride_bytes});
  return extent;
}

// The first and last bytes of a plane with slots.
Reach ReachOf(const LayerCache& cache, const kvevict_plane& plane) {
  if (plane.address_table != 0) return {0, UINT64_MAX};  // blocks are anywhere
  const Extent extent = ExtentOf(cache, plane);
  return {static_cast<uint64_t>(extent.begin),
          static_cast<uint64_t>(extent.end - 1)};
}

Reach CompanionsReach(const LayerCache& cache) {
  Reach all{UINT64_MAX, 0};
  for (uint32_t i = 2; i < PlaneCount(*cache.view); ++i) {
    const kvevict_plane& plane = PlaneAt(*cache.view, i);
    if (!HasRows(*cache.view, plane) || IsEmpty(cache, plane)) continue;
    const Reach reach = ReachOf(cache, plane);
    all.first = std::min(all.first, reach.first);
    all.last = std::max(all.last, reach.last);
  }
  return all;
}

// Whether the host can tell that both caches have a block in common. Blocks
// with addresses are as their tables say.
bool HaveBlocksInCommon(const LayerCache& a, const LayerCache& b,
                        LayersOfBlocks* layers) {
  if (a.view->block_table == b.view->block_table) return true;
  if (!a.knows_blocks || !b.knows_blocks) return false;
  const auto numbers = [](const LayerCache& cache) {
    return BlockNumbers(cache.blocks(), cache.lowest_block, cache.highest_block,
                        false);
  };
  return layers->AnyApartBy(numbers(a), numbers(b), 0);
}

enum class Answer { kNo, kYes, kTooLong };

Answer PlanesMeet(const LayerCache& a, const kvevict_plane& p,
                  const LayerCache& b, const kvevict_plane& q,
                  LayersOfBlocks* layers) {
  if (!HasRows(*a.view, p) || !HasRows(*b.view, q)) return Answer::kNo;
  if (IsEmpty(a, p) || IsEmpty(b, q)) return Answer::kNo;
  if (p.address_table != 0 || q.address_table != 0) {
    if (p.address_table != q.address_table ||
        !HaveBlocksInCommon(a, b, layers)) {
      return Answer::kNo;
    }
  } else if (IsHidden(a, p) || IsHidden(b, q)) {
    // Within one block of one table the positions of planes relative to each
    // other are known.
    const bool same_place = IsHidden(a, p) && IsHidden(b, q) &&
                            a.view->block_table == b.view->block_table &&
                            p.block_stride_bytes == q.block_stride_bytes;
    if (!same_place) return Answer::kNo;
  }
  // A quick test, since most planes are far apart.
  if (p.address_table == 0 && !ExtentOf(a, p).Meets(ExtentOf(b, q)))
    return Answer::kNo;
  Effort effort;
  if (!Meet(BlockGrid(a, p), BlockGrid(b, q), &effort, layers))
    return Answer::kNo;
  return effort.spent() ? Answer::kTooLong : Answer::kYes;
}

bool SameLengths(const LayerCache& a, const LayerCache& b) {
  if (a.tokens.most != b.tokens.most || a.first_slot != b.first_slot) {
    return false;
  }
  if (a.tokens.each == nullptr && b.tokens.each == nullptr) return true;
  for (uint32_t head = 0; head < a.view->n_kv_heads; ++head) {
    if (a.tokens.Of(head) != b.tokens.Of(head)) return false;
  }
  return true;
}

// Whether equal planes of both have the same rows.
bool SameSlots(const LayerCache& a, const LayerCache& b) {
  const kvevict_view& v = *a.view;
  const kvevict_view& w = *b.view;
  if (v.n_kv_heads != w.n_kv_heads || v.block_size != w.block_size ||
      v.block_table_head_stride != w.block_table_head_stride ||
      v.ring_slots != w.ring_slots || v.ring_first != w.ring_first ||
      v.first_recent != w.first_recent || a.n_recent != b.n_recent ||
      !SameLengths(a, b)) {
    return false;
  }
  if (v.block_table == w.block_table) return true;
  if (!a.knows_blocks || !b.knows_blocks) return false;
  return a.blocks().ForEachUsed(
      [&](uint64_t i, int32_t id) { return w.block_table[i] == id; });
}

bool SamePlane(const kvevict_plane& p, const kvevict_plane& q) {
  return std::memcmp(&p, &q, sizeof(p)) == 0;
}

// The same for planes that may have different address tables with the addresses
// of one cache.
bool SamePlane(const LayerCache& a, const kvevict_plane& p, const LayerCache& b,
               const kvevict_plane& q) {
  if (p.address_table == q.address_table) return SamePlane(p, q);
  if (p.address_table == 0 || !a.knows_addresses || !b.knows_addresses) {
    return false;
  }
  kvevict_plane with_table_of_p = q;
  with_table_of_p.address_table = p.address_table;
  if (!SamePlane(p, with_table_of_p) || a.IsEmpty()) return false;
  const auto* const of_p = reinterpret_cast<const uint64_t*>(p.address_table);
  const auto* const of_q = reinterpret_cast<const uint64_t*>(q.address_table);
  return a.blocks().ForEachUsed(
      [&](uint64_t, int32_t id) { return of_p[id] == of_q[id]; });
}

bool SamePlanes(const kvevict_view& v, const kvevict_view& w) {
  if (PlaneCount(v) != PlaneCount(w)) return false;
  for (uint32_t i = 0; i < PlaneCount(v); ++i) {
    if (!SamePlane(PlaneAt(v, i), PlaneAt(w, i))) return false;
  }
  return true;
}

// Whether two caches are one.
bool AreOneCache(const LayerCache& a, const LayerCache& b) {
  if (PlaneCount(*a.view) != PlaneCount(*b.view)) return false;
  for (uint32_t i = 0; i < PlaneCount(*a.view); ++i) {
    if (!SamePlane(a, PlaneAt(*a.view, i), b, PlaneAt(*b.view, i)))
      return false;
  }
  return SameSlots(a, b);
}

// The companions of b that a has too.
uint64_t SharedCompanions(const LayerCache& a, const LayerCache& b) {
  uint64_t shared = 0;
  for (uint32_t i = 0; i < b.view->n_companions; ++i) {
    if (!HasRows(*b.view, b.view->companions[i])) continue;
    for (uint32_t j = 0; j < a.view->n_companions; ++j) {
      if (SamePlane(a, a.view->companions[j], b, b.view->companions[i])) {
        shared |= uint64_t{1} << i;
      }
    }
  }
  return shared != 0 && SameSlots(a, b) ? shared : 0;
}

bool AreShared(const LayerCache& a, uint32_t i, const LayerCache& b,
               uint32_t j) {
  return i >= 2 && j >= 2 && (b.shared_companions >> (j - 2) & 1) != 0 &&
         SamePlane(a, PlaneAt(*a.view, i), b, PlaneAt(*b.view, j)) &&
         SameSlots(a, b);
}

// Whether the planes of both lie in one pool, in blocks of their own.
bool AreInOnePool(const LayerCache& a, const LayerCache& b) {
  const kvevict_view& v = *a.view;
  const kvevict_view& w = *b.view;
  if (!a.knows_blocks || !b.knows_blocks) return false;
  if (v.block_size != w.block_size || v.n_kv_heads != w.n_kv_heads)
    return false;
  return SamePlanes(v, w);
}

// Whether different blocks of a pool share no byte, whichever blocks of
// [lowest, highest] they are.
bool BlocksAreApart(const LayerCache& layer, int32_t lowest, int32_t highest) {
  LayerCache any = layer;
  any.tokens = any.view->block_size;
  any.first_slot = 0;
  any.lowest_block = lowest;
  any.highest_block = highest;
  const kvevict_view& view = *any.view;
  for (uint32_t i = 0; i < PlaneCount(view); ++i) {
    for (uint32_t j = 0; j <= i; ++j) {
      const kvevict_plane& p = PlaneAt(view, i);
      const kvevict_plane& q = PlaneAt(view, j);
      if (!HasRows(view, p) || !HasRows(view, q)) continue;
      if ((p.address_table == 0) != (q.address_table == 0)) return false;
      if (p.address_table != 0) continue;
      if (p.block_stride_bytes != q.block_stride_bytes) return false;
      Effort effort;
      if (Meet(BlockGrid(any, p), BlockGrid(any, q), &effort, nullptr))
        return false;
    }
  }
  return true;
}

// Compares all layers of a pool at once. Pair by pair, 80 layers would take 10
// ms.
class Pool {
 public:
  explicit Pool(LayersOfBlocks* layers) : layers_(layers) {}

  // Whether both lie in the pool and share nothing. The first layer asked about
  // defines the pool.
  bool KeepsApart(const LayerCache& a, const LayerCache& b) {
    if (!AreInOnePool(a, b) || !layers_->NoneTwice()) return false;
    if (leader_ == nullptr) {
      leader_ = &a;
      is_apart_ = BlocksAreApart(a, layers_->lowest(), layers_->highest());
    }
    return is_apart_ && (leader_ == &a || AreInOnePool(*leader_, a));
  }

 private:
  LayersOfBlocks* const layers_;
  const LayerCache* leader_ = nullptr;
  bool is_apart_ = false;
};

}  // namespace

PlaneAxes AxesOf(const LayerCache& cache, const kvevict_plane& plane,
                 int64_t n_blocks) {
  const kvevict_view& view = *cache.view;
  if (IsRecent(plane)) return {plane, view.n_kv_heads, cache.n_recent};
  PlaneAxes axes(view, plane, cache.tokens.most, n_blocks);
  if (view.block_size == 0 && view.ring_slots == 0 && !cache.IsEmpty()) {
    const uint32_t first = RowOfSlot(plane, cache.first_slot);
    axes.data += uint64_t{first} * plane.token_stride_bytes;
    axes.tokens.n -= first;
  }
  return axes;
}

LayerCache CacheOf(const kvevict_view& view, uint32_t number,
                   const ListCounts& tokens, bool on_host,
                   uint32_t first_slot) {
  LayerCache cache;
  cache.view = &view;
  cache.number = number;
  cache.tokens = on_host ? tokens : ListCounts(tokens.most);
  cache.n_recent = RecentOf(view, tokens.most);
  if (cache.n_recent != 0) cache.tokens = view.first_recent;
  cache.first_slot = first_slot;
  if (cache.IsEmpty()) return cache;
  cache.knows_addresses = on_host;
  if (on_host && view.block_table != nullptr) {
    cache.knows_blocks = true;
    cache.lowest_block = INT32_MAX;
    cache.highest_block = 0;
    cache.blocks().ForEachUsed([&](uint64_t, int32_t id) {
      cache.lowest_block = std::min(cache.lowest_block, id);
      cache.highest_block = std::max(cache.highest_block, id);
      return true;
    });
    if (cache.lowest_block > cache.highest_block) {  // no head holds anything
      cache.tokens = 0;
      return cache;
    }
  }
  for (uint32_t i = 0; i < 2; ++i) {
    if (!IsPresent(PlaneAt(view, i))) continue;
    cache.reach.of[i] = ReachOf(cache, PlaneAt(view, i));
  }
  if (PlaneCount(view) > 2) cache.reach.of[2] = CompanionsReach(cache);
  return cache;
}

bool AreOne(const kvevict_view& a, const kvevict_view& b) {
  return SamePlanes(a, b) && a.block_size == b.block_size &&
         a.block_table == b.block_table && a.ring_first == b.ring_first &&
         a.ring_slots == b.ring_slots && a.first_recent == b.first_recent;
}

void FindShared(std::span<LayerCache> layers) {
  for (uint32_t l = 0; l < layers.size(); ++l) {
    LayerCache& mine = layers[l];
    mine.owner = l;
    mine.shared_companions = 0;
    for (uint32_t m = 0; m < l && mine.owner == l; ++m) {
      if (layers[m].owner != m) continue;
      if (AreOneCache(layers[m], mine)) mine.owner = m;
      mine.shared_companions |= SharedCompanions(layers[m], mine);
    }
  }
}

Status SharesCompanion(std::span<const LayerCache> layers, uint32_t l,
                       uint64_t companions, const char* why) {
  const int i = std::countr_zero(companions);
  uint32_t m = 0;
  while (m + 1 < l && (SharedCompanions(layers[m], layers[l]) >> i & 1) == 0) {
    ++m;
  }
  return InvalidArgument(
      "views[%u].companions[%d] is also one of views[%u]: %s", layers[l].number,
      i, layers[m].number, why);
}

Status CheckApart(const char* array, std::span<const LayerCache> layers) {
  LayersOfBlocks blocks(layers);
  Pool pool(&blocks);
  const auto check = [&](uint32_t l, uint32_t i, uint32_t m, uint32_t j) {
    const LayerCache& a = layers[l];
    const LayerCache& b = layers[m];
    if (!a.reach.OfPlane(i).Meets(b.reach.OfPlane(j))) return Status();
    if (AreShared(a, i, b, j)) return Status();
    const Answer answer =
        PlanesMeet(a, PlaneAt(*a.view, i), b, PlaneAt(*b.view, j), &blocks);
    if (answer == Answer::kNo) return Status();
    return InvalidArgument(
        "%s[%u].%s%s of %u tokens and %s[%u].%s%s of %u tokens %s", array,
        a.number, a.is_destination ? "destination." : "", PlaneName(i).text,
        a.tokens.most, array, b.number, b.is_destination ? "destination." : "",
        PlaneName(j).text, b.tokens.most,
        answer == Answer::kYes
            ? "overlap, but are not the same"
            : "are too intricate to tell that they do not overlap");
  };
  for (uint32_t m = 0; m < layers.size(); ++m) {
    if (layers[m].owner != m) continue;
    for (uint32_t l = 0; l < m; ++l) {
      if (layers[l].owner != l) continue;
      if (pool.KeepsApart(layers[l], layers[m])) continue;
      for (uint32_t i = 0; i < PlaneCount(*layers[l].view); ++i) {
        for (uint32_t j = 0; j < PlaneCount(*layers[m].view); ++j) {
          KV_RETURN_IF_ERROR(check(l, i, m, j));
        }
      }
    }
  }
  return Status();
}

bool Overlap(const LayerCache& a, const LayerCache& b) {
  const LayerCache both[] = {a, b};
  LayersOfBlocks blocks(both);
  for (uint32_t i = 0; i < PlaneCount(*a.view); ++i) {
    for (uint32_t j = 0; j < PlaneCount(*b.view); ++j) {
      if (!a.reach.OfPlane(i).Meets(b.reach.OfPlane(j))) continue;
      if (PlanesMeet(a, PlaneAt(*a.view, i), b, PlaneAt(*b.view, j), &blocks) !=
          Answer::kNo) {
        return true;
      }
    }
  }
  return false;
}

Status CheckApartFrom(const char* name, const void* memory, uint64_t n_bytes,
                      const char* array, std::span<const LayerCache> caches) {
  // Views the memory as rows of a cache, the longest that end where the memory
  // does.
  const uint32_t row_bytes = 1u << std::countr_zero(n_bytes | 64);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 1;
  view.k.data = reinterpret_cast<uintptr_t>(memory);
  view.k.dtype = KVEVICT_DTYPE_OPAQUE;
  view.k.row_bytes = row_bytes;
  view.k.token_stride_bytes = row_bytes;
  const LayerCache lent =
      CacheOf(view, 0, static_cast<uint32_t>(n_bytes / row_bytes), true);
  for (uint32_t l = 0; l < caches.size(); ++l) {
    const LayerCache& cache = caches[l];
    if (cache.owner != l || !cache.reach.Meets(lent.reach)) continue;
    const LayerCache both[] = {cache, lent};
    LayersOfBlocks blocks(both);
    for (uint32_t i = 0; i < PlaneCount(*cache.view); ++i) {
      if (!cache.reach.OfPlane(i).Meets(lent.reach.of[0])) continue;
      const kvevict_plane& plane = PlaneAt(*cache.view, i);
      if (PlanesMeet(cache, plane, lent, view.k, &blocks) == Answer::kNo) {
        continue;
      }
      return InvalidArgument(
          "%s 0x%llx, of which %llu bytes are needed, overlaps %s[%u]%s", name,
          static_cast<unsigned long long>(view.k.data),
          static_cast<unsigned long long>(n_bytes), array, cache.number,
          cache.is_destination ? ".destination" : "");
    }
  }
  return Status();
}

Status CheckDistinct(const char* array, std::span<LayerCache> layers) {
  if (layers.size() < 2) return Status();
  FindShared(layers);
  for (uint32_t i = 0; i < layers.size(); ++i) {
    if (layers[i].owner == i) continue;
    const LayerCache& owner = layers[layers[i].owner];
    const auto role = [](const LayerCache& cache) {
      return cache.is_destination ? "destination" : "view";
    };
    return InvalidArgument("%s[%u].%s is %s[%u].%s again", array,
                           layers[i].number, role(layers[i]), array,
                           owner.number, role(owner));
  }
  return CheckApart(array, layers);
}

Status CheckPlanesApart(const LayerCache& cache) {
  const kvevict_view& view = *cache.view;
  LayersOfBlocks blocks({&cache, 1});
  for (uint32_t j = 1; j < PlaneCount(view); ++j) {
    for (uint32_t i = 0; i < j; ++i) {
      const kvevict_plane& a = PlaneAt(view, i);
      const kvevict_plane& b = PlaneAt(view, j);
      if (!cache.reach.OfPlane(i).Meets(cache.reach.OfPlane(j))) continue;
      const Answer answer = PlanesMeet(cache, a, cache, b, &blocks);
      if (answer == Answer::kNo) continue;
      return InvalidArgument(
          "%s.data 0x%llx and %s.data 0x%llx %s%s", PlaneName(i).text,
          static_cast<unsigned long long>(a.data), PlaneName(j).text,
          static_cast<unsigned long long>(b.data),
          answer == Answer::kYes
              ? "overlap"
              : "are too intricate to tell that they do not overlap",
          j == 1 ? "; leave out v where values are part of the keys' rows"
                 : "");
    }
  }
  return Status();
}

}  // namespace kvevict
