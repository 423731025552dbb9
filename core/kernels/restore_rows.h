// Compaction taken back: rows move up, and others go between them.
#ifndef KVEVICT_CORE_KERNELS_RESTORE_ROWS_H_
#define KVEVICT_CORE_KERNELS_RESTORE_ROWS_H_

#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/simd.h"

namespace kvevict {

struct RestoreRowsArgs {
  MovedRows rows, saved;             // pieces of one size and number, apart
  const int32_t* evicted = nullptr;  // strictly ascending
  uint32_t n_evicted = 0;
  uint32_t n_rows = 0;  // in the end
};

// Makes saved row i row evicted[i]; the rows there were fill the others in their order.
void RestoreRows(SimdTarget simd, const RestoreRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_RESTORE_ROWS_H_
