// How many keys each list of a layer keeps, if scores decide.
#ifndef KVEVICT_CORE_KERNELS_HEAD_SPLIT_H_
#define KVEVICT_CORE_KERNELS_HEAD_SPLIT_H_

#include <cstdint>

#include "core/evict/keep_lists.h"
#include "core/simd.h"

namespace kvevict {

struct HeadContest {
  const uint32_t* keys;  // [n_lists, tokens.most], see core/kernels/topk.h
  ListCounts tokens;     // per list
  uint32_t n_lists;
  uint32_t budget;    // of each list, if all kept the same
  uint64_t together;  // of all lists
  uint32_t most;      // the most that any list may keep
  uint32_t* counts;   // out: [n_lists]; at least 1 for a list with tokens
  uint32_t* scratch;  // [n_lists], scratch_stride apart
  uint64_t scratch_stride;
};

// A number of each list, `stride` elements apart.
struct ListNumbers {
  uint32_t* first;
  uint64_t stride;

  uint32_t& operator[](uint64_t list) const { return first[list * stride]; }
};

// Adds n_left of the ties to the counts of the lists in turn: every list gets
// as many as the level, if it has them, and lower lists get one of those that
// are left then.
void DealTies(uint64_t n_left, uint64_t n_lists, const ListNumbers& ties,
              const ListNumbers& counts);

// Keeps the `together` largest keys of all lists, or all if there are
// fewer, and in each list at least the n_safe <= budget largest. Keys equal to
// the smallest that stays are dealt to the lists in turn, lower lists first.
void CountWinners(SimdTarget simd, const HeadContest& contest, uint32_t n_safe);

// No keys are safe here. In addition to its forced keys a list keeps won_part
// of the others that it won, and n_own more, rounded half to even in f32.
void BlendWinners(SimdTarget simd, const HeadContest& contest, uint32_t n_own,
                  float won_part);

// Counts the keys whose scores reach the threshold, at most the budget.
void CountPassing(SimdTarget simd, const HeadContest& contest, float threshold);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_HEAD_SPLIT_H_
