// Sums of attention to means over the queries that could see a slot.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_

#include <cstdint>

#include "core/keep_lists.h"
#include "core/simd.h"

namespace kvevict {

// Divides the sums of n slots from `begin` on, of a list, by how many of n_seen
// queries could see each: those from its own position on. The count is rounded to f32
// beyond 2^24. Equal bits on every target.
void DivideByQueries(SimdTarget simd, const SlotPositions& slots, uint32_t list,
                     uint32_t begin, uint32_t n, uint32_t n_seen, float* sums);

// The same where the last n_rows queries of a row of n_tokens slots are those summed,
// and each could see the slots up to its own.
void DivideByRows(SimdTarget simd, uint32_t n_tokens, uint32_t n_rows,
                  uint32_t begin, uint32_t n, float* sums);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_
