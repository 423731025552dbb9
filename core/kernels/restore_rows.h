// Reverts compaction: rows move up, and saved rows go between them.
#ifndef KVEVICT_CORE_KERNELS_RESTORE_ROWS_H_
#define KVEVICT_CORE_KERNELS_RESTORE_ROWS_H_

#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/simd.h"

namespace kvevict {

struct RestoreRowsArgs {
  MovedRows rows, saved;  // pieces of one size and number; no overlap
  const int32_t* evicted = nullptr;  // strictly ascending
  uint32_t n_evicted = 0;
  uint32_t n_rows = 0;  // after restoring
};

// Puts saved row i at row evicted[i]. The present rows fill the other places in
// their order.
void RestoreRows(SimdTarget simd, const RestoreRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_RESTORE_ROWS_H_
