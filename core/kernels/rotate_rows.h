// Rotates keys by RoPE, as if their tokens were at other positions.
#ifndef KVEVICT_CORE_KERNELS_ROTATE_ROWS_H_
#define KVEVICT_CORE_KERNELS_ROTATE_ROWS_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// The most pairs of elements that rotate; other elements of a row do not.
inline constexpr uint32_t kMaxPairs = 256;

struct RotateRows {
  const RowSource* heads = nullptr;  // [n_heads], whose rows rotate alike
  uint32_t n_heads = 1;
  uint32_t first_row = 0;  // of n_rows
  uint32_t n_rows = 0;
  // [n_rows]: the number of positions to rotate by; with from_slots, the
  // position to rotate from, to the row's own number.
  const int32_t* offsets = nullptr;
  const uint64_t* turns = nullptr;  // [n_pairs]: TurnsOf() each frequency
  uint32_t n_pairs = 0;
  // Pair f is elements f and f + n_pairs, or 2 f and 2 f + 1.
  bool is_interleaved = false;
  bool from_slots = false;
};

// Works in place. Angles are fractions of a turn in 64 bits, so their error
// does not grow with the offset; cosines and sines are within 1e-7. Every
// target with a fused multiply-add gives the same bits. Rows with an offset of
// 0 are not touched. Heads, and adjacent rows, that share an offset share its
// cosines. NaN and infinity spread over their pair.
void RotateRowsInPlace(SimdTarget simd, const RotateRows& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ROTATE_ROWS_H_
