// Orders the keys of a list by rank and then by score.
#ifndef KVEVICT_CORE_CPU_RANK_KEYS_H_
#define KVEVICT_CORE_CPU_RANK_KEYS_H_

#include <cstdint>

#include "core/evict/token_ranges.h"
#include "core/simd.h"

namespace kvevict::cpu {

// Changes keys so that their n_best largest are those of the highest ranks.
// Ranks that fit whole get the forced key, and those for which nothing is left
// get the lowest. In the rank in between keys stay as they are, except that of
// NaN, which is raised above the lowest. Forced keys stay.
void RankKeys(SimdTarget simd, const SlotRanks& ranks, uint32_t n_best,
              uint32_t* keys);

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_RANK_KEYS_H_
