// Operations that choose the slots which stay, by scores.
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

// Which slots must stay, per keep list.
struct Forced {
  uint32_t n_sink = 0;
  uint32_t n_recent = 0;
  // Ascending positions, in host memory; those not held are ignored.
  std::span<const int32_t> protect;
};

// How many a list keeps, where the scores of its layer decide.
struct HeadSplit {
  HeadRule kind = HeadRule::kEqual;
  double floor = 0.0;
  double threshold = 0.0;

  bool Counts() const { return kind != HeadRule::kEqual; }
  // What a list keeps whatever others have: its best tokens; of a blend, beside what
  // must stay.
  uint32_t OwnOf(uint32_t budget, const Forced& forced) const {
    if (kind == HeadRule::kAdaptive) {
      return std::max(1u, static_cast<uint32_t>(budget * floor));
    }
    return static_cast<uint32_t>(RoomOf(budget, forced) * floor);
  }
  // What a budget has beside what must stay.
  static uint32_t RoomOf(uint32_t budget, const Forced& forced) {
    const uint64_t n_forced =
        uint64_t{forced.n_sink} + forced.n_recent + forced.protect.size();
    return static_cast<uint32_t>(budget - std::min<uint64_t>(n_forced, budget));
  }
  float won_part() const { return static_cast<float>(1.0 - floor); }
};

struct SelectJob {
  ListCounts tokens;  // per list
  // [n_lists, tokens.most]; NULL: nothing is ranked
  const float* scores = nullptr;
  uint32_t* keys = nullptr;  // scratch, likewise; may be the scores
  KeepLists keep;            // out: ascending; count.Of(i) <= tokens.Of(i)
  SlotPositions slots;  // what is kept is slots.first + a place in `scores`
  // Where scores decide how many: the budget of a list, and where keep.count.each is
  // to be written. No list keeps more than keep.count.most.
  uint32_t budget = 0;
  uint32_t* counts = nullptr;
  Mass* masses = nullptr;  // [n_lists], where they are measured
};

struct SelectArgs {
  // Of n_lists in all, of up to n_tokens each.
  struct Size {
    uint32_t n_tokens;
    uint64_t n_lists;
  };

  Jobs<SelectJob> jobs;  // with as many lists each
  kvevict_tie tie;
  Forced forced;
  std::span<uint8_t> scratch;
  HeadSplit heads;
  // What stays or goes together: the slots of a block have the mean of its scores, and
  // what must stay keeps its block. Lists lose a multiple of the size.
  SlotBlocks blocks = {};
  // Which tokens come before others whatever their scores, once it is known how many
  // each list keeps. Host memory.
  std::span<const TokenRange> ranges = {};
};

// Measures what the keep lists of selected jobs have of their scores, which are still
// there; adds: to what was measured before, of other slots.
struct MeasureMassArgs {
  Jobs<SelectJob> jobs;  // with as many lists each
  bool adds = false;
};

// What changes scores by which of a list are the best, what must stay before all.
//
// scale_by_best_share: writes a list's scores times the share that its best have in the sum of
// them, as many as the budget has beside what must stay, which is in neither sum, nor
// is NaN. Where that is not a finite number above 0 it writes them as they are.
//
// pin_best: of what a list keeps the best `share`, rounded down in f32, get +infinity,
// and where heads are adaptive, those of its floor. Where scores decide how many a list
// keeps, they do so here. Ranges rank these best, and do not count in the share.
struct BestArgs {
  SelectArgs select;  // whose lists are scratch
  // Their scores are written to: by pin_best not the keys, by scale_by_best_share either.
  Jobs<ShapeJob> shapes;
  double share = 0.0;

  // Of any list of a layer.
  uint32_t LeastPinned(const SelectJob& job) const {
    return select.heads.kind == HeadRule::kAdaptive
               ? select.heads.OwnOf(job.budget, select.forced)
               : 0;
  }
};

struct RescueJob {
  float* scores = nullptr;  // those of the select job, which are written to
  FloatRows marks;  // per list: of half of the slots the highest are marked
  uint32_t n_blocks = 0;  // how many of each list; 0: it is left alone
  uint32_t layer = 0;     // its number in the model
  uint32_t n_seen = 0;    // tokens so far
};

// Some blocks that would go stay: see Policy.rescue. Of each list, slots between
// both ends that stay get +infinity, all others NaN.
struct RescueBlocksArgs {
  SelectArgs select;  // before; its lists are scratch, and keys not the scores
  Jobs<RescueJob> jobs;
  Anchor anchor;
  uint64_t seed;
};

// Beyond a share of the mass blocks stay by how unlike their keys are: see
// Policy.diverse_mass. Of each list whose best blocks do not use up its room,
// slots between both ends that stay get +infinity, all others NaN.
struct DiversifyBlocksArgs {
  using Size = LayerSize;

  SelectArgs select;  // before; its lists are scratch, and keys not the scores
  const kvevict_layer_geometry& layer;  // of all jobs
  float mass;
  uint32_t n_tokens;    // the most of any layer, of these jobs or beside them
  Jobs<ShapeJob> jobs;  // whose scores are those of the select jobs
  std::span<uint8_t> scratch;  // that of `select` too
};

// shape and then select, by the same lists; scores stay as they were. For one row per KV
// head, each with its list.
struct ShapeAndSelectArgs {
  ShapeArgs shape;
  SelectArgs select;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_OPS_SELECT_H_
