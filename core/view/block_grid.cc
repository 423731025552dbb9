#include "core/view/block_grid.h"

#include <algorithm>
#include <iterator>
#include <numeric>

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

}  // namespace

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

std::pair<Wide, Wide> BlockGrid::NumbersNear(const Extent& near) const {
  return {std::max<Wide>(blocks.first(),
                         FloorDiv(near.begin - extent.end, block_stride) + 1),
          std::min<Wide>(blocks.last(),
                         CeilDiv(near.end - extent.begin, block_stride) - 1)};
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

}  // namespace kvevict
