// Sums of attention to means over the queries that could see a slot.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "core/evict/keep_lists.h"
#include "core/simd.h"

namespace kvevict {

// Divides the sums of n slots from `begin` on, of a list, by how many of the last
// n_summed of n_seen queries could see each: those from its own position on. The count
// is rounded to f32 beyond 2^24. Equal bits on every target.
void DivideByQueries(SimdTarget simd, const SlotPositions& slots, uint32_t list,
                     uint32_t begin, uint32_t n, uint32_t n_seen,
                     uint32_t n_summed, float* sums);

// The same where the last n_rows queries of a row of n_tokens slots are those summed,
// and each could see the slots up to its own.
void DivideByRows(SimdTarget simd, uint32_t n_tokens, uint32_t n_rows,
                  uint32_t begin, uint32_t n, float* sums);

// Adds to sums[i], i < n, the maximum of rows[i .. i + width); from `n_old` on, that is
// what they become. rows has n + width - 1 elements. NaN in, NaN out.
void AddForwardMax(SimdTarget simd, const float* rows, size_t n, uint32_t width,
                   size_t n_old, float* sums);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_SUMS_H_
