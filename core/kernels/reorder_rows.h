// Moves rows to the places that a list in any order gives them.
#ifndef KVEVICT_CORE_KERNELS_REORDER_ROWS_H_
#define KVEVICT_CORE_KERNELS_REORDER_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/simd.h"

namespace kvevict {

// The words that OrderMoves() needs at `moves`: a count, n moves, and n as
// scratch.
constexpr size_t MoveWords(uint32_t n) { return 2 * size_t{n} + 1; }

// Finds an order in which row slots[i] can move to row i, for every i < n, such
// that no row is overwritten before all its readers have read it. Rows in place
// do not move.
//
// moves[0] becomes the number of moves, and moves[1 + m] the row that the m-th
// move writes. It is ~row for the first move of a cycle: that row is saved
// before, and the cycle's last move reads the saved row.
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
