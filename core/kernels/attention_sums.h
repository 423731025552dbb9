// Attention sums, and their means over the queries that could see a slot.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "core/evict/keep_lists.h"
#include "core/simd.h"

namespace kvevict {

// Divides the sums of a list's n slots from `begin` on by the number of the
// last n_summed of n_seen queries that could see each slot: those from its own
// position on. The count is rounded to f32 above 2^24. All targets give equal
// bits.
void DivideByQueries(SimdTarget simd, const SlotPositions& slots, uint32_t list,
                     uint32_t begin, uint32_t n, uint32_t n_seen,
                     uint32_t n_summed, float* sums);

// The same if the last n_rows queries of n_tokens slots were summed, and each
// could see the slots up to its own.
void DivideByRows(SimdTarget simd, uint32_t n_tokens, uint32_t n_rows,
                  uint32_t begin, uint32_t n, float* sums);

// Adds the maximum of rows[i .. i + width) to sums[i], i < n. From `n_old` on
// it replaces them. rows has n + width - 1 elements. NaN in, NaN out.
void AddForwardMax(SimdTarget simd, const float* rows, size_t n, uint32_t width,
                   size_t n_old, float* sums);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_
