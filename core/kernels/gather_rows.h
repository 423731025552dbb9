// Compaction: rows move down, in the order of an ascending list.
#ifndef KVEVICT_CORE_KERNELS_GATHER_ROWS_H_
#define KVEVICT_CORE_KERNELS_GATHER_ROWS_H_

#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/simd.h"

namespace kvevict {

struct GatherRowsArgs : MovedRows {
  const int32_t* keep = nullptr;  // strictly ascending
  uint32_t n_keep = 0;
};

// Moves row keep[i] to row i, for i = 0, 1, ... Since keep is strictly
// ascending, keep[i] >= i: a row is read before anything is written over it.
void GatherRowsInPlace(SimdTarget simd, const GatherRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_GATHER_ROWS_H_
