// How many keys each list of a layer keeps, where their scores decide.
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
  uint32_t most;      // that any list may keep
  uint32_t* counts;   // out: [n_lists]; 1 at least of a list with tokens
  uint32_t* scratch;  // [n_lists], scratch_stride apart
  uint64_t scratch_stride;
};

// The n_lists * budget largest keys of all lists stay, or all where there are fewer,
// and of each list at least the n_safe <= budget largest. Of keys equal to the
// smallest that stays every list gets one in turn, lower lists first.
void CountWinners(SimdTarget simd, const HeadContest& contest, uint32_t n_safe);

// Where no key is safe: beside its forced keys a list keeps won_part of those that
// won, and n_own more. Rounded half to even, in f32.
void BlendWinners(SimdTarget simd, const HeadContest& contest, uint32_t n_own,
                  float won_part);

// Keys of scores that reach the threshold, at most the budget.
void CountPassing(SimdTarget simd, const HeadContest& contest, float threshold);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_HEAD_SPLIT_H_
