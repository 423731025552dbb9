// Rows to the places that a list in any order gives them.
#ifndef KVEVICT_CORE_KERNELS_REORDER_ROWS_H_
#define KVEVICT_CORE_KERNELS_REORDER_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/simd.h"

namespace kvevict {

// Words at `moves` of OrderMoves(): a count, n moves, and n to work with.
constexpr size_t MoveWords(uint32_t n) { return 2 * size_t{n} + 1; }

// Finds an order in which row slots[i] can move to row i, for every i < n, such
// that no row is written over while it has a reader left. Rows in place do not
// move.
//
// moves[0] becomes the number of moves, and moves[1 + m] the row that the m-th
// one writes; ~row where it is the first one of a cycle: that row is saved
// before, and the cycle's last move reads it.
void OrderMoves(const int32_t* slots, uint32_t n, int32_t* moves);

struct ReorderRowsArgs : MovedRows {
  const int32_t* slots = nullptr;
  const int32_t* moves = nullptr;  // OrderMoves()
  uint8_t* saved_row = nullptr;    // row_bytes of memory
};

// Moves row slots[i] to row i, for every i, as if all were read first.
void ReorderRowsInPlace(SimdTarget simd, const ReorderRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REORDER_ROWS_H_
