// Operations that select the slots that stay, by scores.
#ifndef KVEVICT_CORE_OPS_SELECT_H_
#define KVEVICT_CORE_OPS_SELECT_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/evict/mass.h"
#include "core/evict/slot_blocks.h"
#include "core/evict/token_ranges.h"
#include "core/ops/score.h"

namespace kvevict {

// The slots that must stay, per keep list.
struct Forced {
  uint32_t n_sink = 0;
  uint32_t n_recent = 0;
  // Ascending positions in host memory. Those not held are ignored.
  std::span<const int32_t> protect;
};

// How the scores of a layer decide how many slots each list keeps.
struct HeadSplit {
  HeadRule kind = HeadRule::kEqual;
  double floor = 0.0;
  double threshold = 0.0;

  bool Counts() const { return kind != HeadRule::kEqual; }
  // The number of its best tokens that a list keeps whatever the others have.
  // With a blend they are in addition to what must stay.
  uint32_t OwnOf(uint32_t budget, const Forced& forced) const {
    if (kind == HeadRule::kAdaptive) {
      return std::max(1u, static_cast<uint32_t>(budget * floor));
    }
    return static_cast<uint32_t>(RoomOf(budget, forced) * floor);
  }
  // The part of a budget that is left after what must stay.
  static uint32_t RoomOf(uint32_t budget, const Forced& forced) {
    const uint64_t n_forced =
        uint64_t{forced.n_sink} + forced.n_recent + forced.protect.size();
    return static_cast<uint32_t>(budget - std::min<uint64_t>(n_forced, budget));
  }
  float won_part() const { return static_cast<float>(1.0 - floor); }
};

struct SelectJob {
  ListCounts tokens;  // per list
  // [n_lists, tokens.most]. NULL: nothing is ranked.
  const float* scores = nullptr;
  uint32_t* keys = nullptr;  // scratch, shaped like scores; may be the scores
  KeepLists keep;            // out: ascending; count.Of(i) <= tokens.Of(i)
  SlotPositions slots;  // a kept slot is slots.first + its index in `scores`
  // If scores decide how many slots lists keep: the budget of a list, and where
  // keep.count.each is written. No list keeps more than keep.count.most.
  uint32_t budget = 0;
  uint64_t together = 0;  // of all lists
  uint32_t* counts = nullptr;
  Mass* masses = nullptr;  // [n_lists], if they are measured
};

struct SelectArgs {
  // The size for n_lists in all, with up to n_tokens each.
  struct Size {
    uint32_t n_tokens;
    uint64_t n_lists;
  };

  Jobs<SelectJob> jobs;  // all with the same number of lists
  kvevict_tie tie;
  Forced forced;
  std::span<uint8_t> scratch;
  HeadSplit heads;
  // The blocks that stay or go as a whole. The slots of a block have the mean
  // of its scores, and a slot that must stay keeps its block. Lists lose a
  // multiple of the block size.
  SlotBlocks blocks = {};
  // Tokens that rank before or after others whatever their scores, once it is
  // known how many each list keeps. In host memory.
  std::span<const TokenRange> ranges = {};
};

// What a list keeps if lists compete: `count`, and some of the `ties`, the slots
// at the cut that are not counted. Without enough winners all lists are dealt
// ties in turn: see DealTies().
struct ListWinners {
  uint32_t count;
  uint32_t ties;
};

// Finds the n_winners best slots of all lists of all jobs, which have at least
// as many. A list has at least SafeOf() of its best. Slots that must stay come
// first.
struct CountWinnersArgs {
  struct Size {
    uint64_t n_lists;  // of all jobs
  };

  SelectArgs select;  // numbers of lists may differ; keep lists are not used
  uint64_t n_winners;
  ListWinners* winners;  // out: of all lists, end to end
  std::span<uint8_t> scratch;

  // The number of its best slots that a list of a job keeps whatever the others
  // have, at least a block.
  uint32_t SafeOf(const SelectJob& job) const {
    return std::max(select.heads.OwnOf(job.budget, select.forced),
                    select.blocks.size);
  }
};

// Measures the mass of the scores in the keep lists of selected jobs. The
// scores must still be there. `adds` adds to masses measured before, of other
// slots. With `of_chunk` a list that keeps all slots of the chunk has no mass.
struct MeasureMassArgs {
  Jobs<SelectJob> jobs;  // all with the same number of lists
  bool adds = false;
  bool of_chunk = false;
};

// Operations that change scores depending on which are the best of a list.
//
// scale_by_best_share: multiplies a list's scores by the share that its best
// have in their sum. The best are as many as the budget has room for after what
// must stay. Slots that must stay and NaN are in neither sum. If the share is
// not a finite number above 0 the scores are written unchanged.
//
// pin_best: the best `share` of what a list keeps, rounded down in f32, become
// +infinity. With adaptive heads it is at least the tokens of the floor. If
// scores decide how many slots a list keeps, they do so here. Ranges rank these
// best but do not change their number. With `beside` their number is what it
// says, or that share of the longest list, in addition to the slots that must
// stay.
struct BestArgs {
  SelectArgs select;  // its lists are scratch
  // Their scores are written. For pin_best they may not be the keys, for
  // scale_by_best_share they may.
  Jobs<ShapeJob> shapes;
  double share = 0.0;
  CountOrShare beside = {};

  // The fewest slots that are pinned in any list of a layer.
  uint32_t LeastPinned(const SelectJob& job) const {
    if (!beside.IsZero()) {
      const Forced& forced = select.forced;
      const uint32_t most = job.keep.count.most;
      const uint64_t n_more = beside.share > 0.0
                                  ? static_cast<uint64_t>(most * beside.share)
                                  : beside.count;
      return static_cast<uint32_t>(
          std::min<uint64_t>(most, forced.n_sink + uint64_t{forced.n_recent} +
                                       forced.protect.size() + n_more));
    }
    return select.heads.kind == HeadRule::kAdaptive
               ? select.heads.OwnOf(job.budget, select.forced)
               : 0;
  }
};

struct RescueJob {
  float* scores = nullptr;  // scores of the select job; overwritten
  // Per list. The half of the slots with the highest marks is marked.
  FloatRows marks;
  uint32_t n_blocks = 0;  // blocks per list; 0: the layer is left alone
  uint32_t layer = 0;     // its number in the model
  uint32_t n_seen = 0;    // tokens so far
};

// Keeps some blocks that would be evicted: see Policy.rescue. In each list,
// slots between both ends that stay get +infinity and all others NaN.
struct RescueBlocksArgs {
  // The selection before. Its lists are scratch, its keys are not the scores.
  SelectArgs select;
  Jobs<RescueJob> jobs;
  Anchor anchor;
  uint64_t seed;
};

// Beyond a share of the mass, keeps the blocks whose keys are most unlike: see
// Policy.diverse_mass. In each list whose best blocks do not use up its room,
// slots between both ends that stay get +infinity and all others NaN.
struct DiversifyBlocksArgs {
  using Size = LayerSize;

  // The selection before. Its lists are scratch, its keys are not the scores.
  SelectArgs select;
  const kvevict_layer_geometry& layer;  // of all jobs
  float mass;
  uint32_t n_tokens;    // of the longest layer in the call, maybe of other jobs
  Jobs<ShapeJob> jobs;  // with the scores of the select jobs
  std::span<uint8_t> scratch;  // also the scratch of `select`
};

// Does shape and then select with the same lists. The scores stay as they were.
// There is one row per KV head, each with its list.
struct ShapeAndSelectArgs {
  ShapeArgs shape;
  SelectArgs select;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_SELECT_H_
