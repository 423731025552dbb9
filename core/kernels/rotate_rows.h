// Keys turned on by RoPE, as if their tokens stood elsewhere.
#ifndef KVEVICT_CORE_KERNELS_ROTATE_ROWS_H_
#define KVEVICT_CORE_KERNELS_ROTATE_ROWS_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// Pairs of elements that turn; other elements of a row do not.
inline constexpr uint32_t kMaxPairs = 256;

struct RotateRows {
  const RowSource* heads = nullptr;  // [n_heads], whose rows turn alike
  uint32_t n_heads = 1;
  uint32_t first_row = 0;  // of n_rows
  uint32_t n_rows = 0;
  // [n_rows]: by how many positions, or from which to that of the row's number
  const int32_t* offsets = nullptr;
  const uint64_t* turns = nullptr;  // [n_pairs]: TurnsOf() of a position
  uint32_t n_pairs = 0;
  // Pair f is elements f and f + n_pairs, or 2 f and 2 f + 1.
  bool is_interleaved = false;
  bool from_slots = false;
};

// In place. Angles are fractions of a turn in 64 bits, so their error does not grow with
// the offset; cosines and sines are within 1e-7. Every target with a fused multiply-add
// makes the same bits. Rows with an offset of 0 are not touched; heads and neighbours that
// share an offset share its cosines. NaN and infinity spread over their pair.
void RotateRowsInPlace(SimdTarget simd, const RotateRows& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ROTATE_ROWS_H_
