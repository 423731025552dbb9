#include "core/view/overlap.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/view/block_numbers.h"
#include "core/view/extent.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// b > 0. Usually both fit in 64 bits, which divide ten times as fast.
Wide FloorDiv(Wide a, Wide b) {
  if (a == static_cast<int64_t>(a) && b == static_cast<int64_t>(b)) {
    const auto n = static_cast<int64_t>(a), d = static_cast<int64_t>(b);
    return n / d - (n % d < 0);
  }
  return a / b - (a % b < 0);
}
Wide CeilDiv(Wide a, Wide b) { return -FloorDiv(-a, b); }

// The number of steps that a comparison may still take.
class Effort {
 public:
  explicit Effort(uint32_t most = 1 << 16) : left_(most) {}
  bool Spend() { return left_ > 0 && left_-- > 0; }
  void GiveUp() { left_ = 0; }
  bool spent() const { return left_ == 0; }

 private:
  uint32_t left_;
};

// ---- Planes ----

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

// Whether a plane has none of the cache's slots.
bool IsEmpty(const LayerCache& cache, const kvevict_plane& plane) {
  return IsRecent(plane) ? cache.n_recent == 0 : cache.IsEmpty();
}

// The same grid in some blocks. Block `number` is number * block_stride further
// on.
struct BlockGrid : Grid {
  uint64_t block_stride = 0;  // 0: there is one block
  BlockNumbers blocks;

  BlockGrid(const LayerCache& cache, const kvevict_plane& plane);
  explicit BlockGrid(const Grid& rows) : Grid(rows) {}

  // The numbers of blocks that may have bytes in `near`, in use or not.
  std::pair<Wide, Wide> NumbersNear(const Extent& near) const {
    return {std::max<Wide>(blocks.first(),
                           FloorDiv(near.begin - extent.end, block_stride) + 1),
            std::min<Wide>(blocks.last(),
                           CeilDiv(near.end - extent.begin, block_stride) - 1)};
  }
  // The rows in one of the blocks.
  BlockGrid InBlock(int64_t number) const {
    BlockGrid grid{static_cast<const Grid&>(*this)};
    grid.extent.Move(number * Wide{block_stride});
    return grid;
  }
};

BlockGrid::BlockGrid(const LayerCache& cache, const kvevict_plane& plane)
    : Grid(AxesOf(cache, plane, 1)) {
  Merge();
  if (cache.view->block_size == 0 || !cache.knows_blocks) return;
  if (IsRecent(plane)) return;
  if (plane.address_table != 0) return;  // counts as one block
  blocks = BlockNumbers(cache.blocks(), cache.lowest_block, cache.highest_block,
                        plane.block_stride_bytes < 0);
  block_stride = Magnitude(plane.block_stride_bytes);
  if (blocks.first() == blocks.last()) *this = InBlock(blocks.first());
}

// ---- Do two grids meet? ----

// Looks for steps along the axes of both grids that lead to a common byte. Axes
// with equal strides are joined, since only the difference of their steps
// counts. Blocks with equal strides are joined too, but not every difference of
// their numbers occurs.
class Search {
 public:
  // Without `layers` every difference except 0 occurs.
  Search(const BlockGrid& a, const BlockGrid& b, Effort* effort,
         LayersOfBlocks* layers);

  // Also returns true if it takes too long to tell.
  bool Meet() { return Find(0, distance_); }

 private:
  struct Term {
    uint64_t stride;
    int64_t low, high;  // steps
    bool is_blocks;
  };
  static constexpr int kMaxTerms = 10;

  void Add(uint64_t stride, int64_t low, int64_t high);
  bool Find(int i, Wide target);
  bool CanHit(int i, Wide least, Wide most) const;
  bool BlocksAreThere();
  bool IsRefuted(int64_t difference) const {
    return std::find(refuted_, refuted_ + n_refuted_, difference) !=
           refuted_ + n_refuted_;
  }

  const BlockNumbers& a_blocks_;
  const BlockNumbers& b_blocks_;
  const Wide a_unit_, b_unit_, distance_;
  Effort* const effort_;
  LayersOfBlocks* const layers_;
  Term terms_[kMaxTerms];
  int n_terms_ = 0;
  int blocks_term_ = kMaxTerms + 1;  // no term
  // the range that terms from one on reach
  Wide low_[kMaxTerms + 1], high_[kMaxTerms + 1];
  int64_t difference_ = 0;  // difference of block numbers
  int64_t refuted_[8];      // differences that do not occur
  size_t n_refuted_ = 0;
};

Search::Search(const BlockGrid& a, const BlockGrid& b, Effort* effort,
               LayersOfBlocks* layers)
    : a_blocks_(a.blocks),
      b_blocks_(b.blocks),
      a_unit_(a.unit),
      b_unit_(b.unit),
      distance_(b.extent.begin - a.extent.begin),
      effort_(effort),
      layers_(layers) {
  for (int i = 0; i < a.n_axes; ++i) Add(a.axes[i].stride, 0, a.axes[i].n - 1);
  for (int i = 0; i < b.n_axes; ++i) Add(b.axes[i].stride, 1 - b.axes[i].n, 0);
  if (a.block_stride != 0 && a.block_stride == b.block_stride) {
    terms_[n_terms_++] = {a.block_stride, a.blocks.first() - b.blocks.last(),
                          a.blocks.last() - b.blocks.first(), true};
  } else {
    if (a.block_stride != 0) {
      Add(a.block_stride, a.blocks.first(), a.blocks.last());
    }
    if (b.block_stride != 0) {
      Add(b.block_stride, -b.blocks.last(), -b.blocks.first());
    }
  }
  std::sort(terms_, terms_ + n_terms_,
            [](const Term& s, const Term& t) { return s.stride > t.stride; });
  low_[n_terms_] = high_[n_terms_] = 0;
  for (int i = n_terms_; i-- > 0;) {
    const Term& term = terms_[i];
    low_[i] = low_[i + 1] + term.low * Wide{term.stride};
    high_[i] = high_[i + 1] + term.high * Wide{term.stride};
    if (term.is_blocks) blocks_term_ = i;
  }
}

void Search::Add(uint64_t stride, int64_t low, int64_t high) {
  for (int i = 0; i < n_terms_; ++i) {
    if (terms_[i].stride != stride) continue;
    terms_[i].low += low;
    terms_[i].high += high;
    return;
  }
  terms_[n_terms_++] = {stride, low, high, false};
}

// Whether steps along the terms from i on lead to `target`, within the sizes of
// the units.
bool Search::Find(int i, Wide target) {
  const Wide least = target - (a_unit_ - 1);
  const Wide most = target + (b_unit_ - 1);
  if (most < low_[i] || least > high_[i]) return false;
  if (i > blocks_term_ && IsRefuted(difference_)) return false;
  if (!effort_->Spend()) return true;
  if (i == n_terms_) return blocks_term_ > n_terms_ || BlocksAreThere();
  const Term& term = terms_[i];
  const Wide stride = term.stride;
  const Wide first =
      std::max<Wide>(term.low, CeilDiv(least - high_[i + 1], stride));
  const Wide last =
      std::min<Wide>(term.high, FloorDiv(most - low_[i + 1], stride));
  if (last > first + 1 && !CanHit(i, least, most)) return false;
  for (Wide steps = first; steps <= last; ++steps) {
    if (term.is_blocks) difference_ = static_cast<int64_t>(steps);
    if (Find(i + 1, target - steps * stride)) return true;
  }
  return false;
}

// Whether [least, most] contains a multiple of the greatest common divisor of
// all strides from term i on.
bool Search::CanHit(int i, Wide least, Wide most) const {
  uint64_t divisor = 0;
  for (; i < n_terms_; ++i) divisor = std::gcd(divisor, terms_[i].stride);
  return FloorDiv(most, divisor) * divisor >= least;
}

// Whether some blocks of both are difference_ apart.
bool Search::BlocksAreThere() {
  if (layers_ == nullptr
          ? difference_ != 0
          : layers_->AnyApartBy(a_blocks_, b_blocks_, difference_)) {
    return true;
  }
  if (n_refuted_ == std::size(refuted_)) {
    effort_->GiveUp();
    return true;
  }
  refuted_[n_refuted_++] = difference_;
  return false;
}

// Compares each block of `a` with the blocks of `b` that it may reach.
bool BlocksMeet(const BlockGrid& a, const BlockGrid& b, Effort* effort,
                LayersOfBlocks* layers) {
  for (uint64_t begin = 0; begin < b.blocks.size();
       begin += NumberSet::kCapacity) {
    const NumberSet some(b.blocks, begin);
    for (uint64_t i = 0; i < a.blocks.size(); ++i) {
      if (!effort->Spend()) return true;
      const BlockGrid block = a.InBlock(a.blocks[i]);
      auto [number, last] = b.NumbersNear(block.extent);
      for (; number <= last; ++number) {
        if (!some.Contains(number)) continue;
        const auto n = static_cast<int64_t>(number);
        if (Search(block, b.InBlock(n), effort, layers).Meet()) return true;
      }
    }
  }
  return false;
}

bool BlocksMeetRows(const BlockGrid& a, const BlockGrid& rows, Effort* effort,
                    LayersOfBlocks* layers) {
  for (uint64_t i = 0; i < a.blocks.size(); ++i) {
    if (!effort->Spend()) return true;
    const BlockGrid block = a.InBlock(a.blocks[i]);
    if (Search(block, rows, effort, layers).Meet()) return true;
  }
  return false;
}

bool Meet(const BlockGrid& a, const BlockGrid& b, Effort* effort,
          LayersOfBlocks* layers) {
  if (a.block_stride == b.block_stride) {
    return Search(a, b, effort, layers).Meet();
  }
  // A search over all blocks between the lowest and the highest quickly shows
  // that nothing overlaps. To show that something does, each block is compared.
  Effort some(1024);
  if (!Search(a, b, &some, layers).Meet()) return false;
  if (a.block_stride == 0) return BlocksMeetRows(b, a, effort, layers);
  if (b.block_stride == 0) return BlocksMeetRows(a, b, effort, layers);
  return BlocksMeet(a, b, effort, layers);
}

// ---- Views ----

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
    if (PlaneAt(view, i).address_table != 0) {  // blocks may be anywhere
      cache.reach[i] = {0, UINT64_MAX};
      continue;
    }
    const Extent extent = ExtentOf(cache, PlaneAt(view, i));
    cache.reach[i] = {static_cast<uint64_t>(extent.begin),
                      static_cast<uint64_t>(extent.end - 1)};
  }
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

Status CheckApart(const char* array, std::span<const LayerCache> layers) {
  LayersOfBlocks blocks(layers);
  Pool pool(&blocks);
  const auto check = [&](uint32_t l, uint32_t i, uint32_t m, uint32_t j) {
    const LayerCache& a = layers[l];
    const LayerCache& b = layers[m];
    if (i < 2 && j < 2 && !a.reach[i].Meets(b.reach[j])) return Status();
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
  for (uint32_t i = 0; i < 2; ++i) {
    for (uint32_t j = 0; j < 2; ++j) {
      if (!a.reach[i].Meets(b.reach[j])) continue;
      const LayerCache both[] = {a, b};
      LayersOfBlocks blocks(both);
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
    if (cache.owner != l) continue;
    const LayerCache both[] = {cache, lent};
    LayersOfBlocks blocks(both);
    for (uint32_t i = 0; i < PlaneCount(*cache.view); ++i) {
      if (i < 2 && !cache.reach[i].Meets(lent.reach[0])) continue;
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
      if (j < 2 && !cache.reach[i].Meets(cache.reach[j])) continue;
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
