// The keys of a list by rank and then by score.
#ifndef KVEVICT_CORE_CPU_RANK_KEYS_H_
#define KVEVICT_CORE_CPU_RANK_KEYS_H_

#include <cstdint>

#include "core/evict/token_ranges.h"
#include "core/simd.h"

namespace kvevict::cpu {

// Changes keys so that their n_best largest are those of the highest ranks: ranks that
// fit whole get the forced key, those for which nothing is left the lowest one. In the
// rank between, keys stay as they are, but NaN's, which is above the lowest. Forced
// keys stay.
void RankKeys(SimdTarget simd, const SlotRanks& ranks, uint32_t n_best,
              uint32_t* keys);

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_RANK_KEYS_H_
