// Compaction: rows move down, or to another cache, in the order of an ascending
// list.
#ifndef KVEVICT_CORE_KERNELS_GATHER_ROWS_H_
#define KVEVICT_CORE_KERNELS_GATHER_ROWS_H_

#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/simd.h"

namespace kvevict {

struct GatherRowsArgs {
  MovedRows from, to;    // pieces of one size and number
  bool in_place = true;  // `to` is `from`; otherwise they do not overlap
  // Strictly ascending; in place >= first_row. nullptr if not in place: 0, 1,
  // ...
  const int32_t* keep = nullptr;
  uint32_t n_keep = 0;
  uint32_t first_row = 0;

  uint32_t Kept(uint32_t i) const {
    return keep == nullptr ? i : static_cast<uint32_t>(keep[i]);
  }
};

// Moves row keep[i] to row first_row + i, for i = 0, 1, ... Since keep is
// strictly ascending, in place keep[i] >= first_row + i, so a row is read
// before it is overwritten.
void GatherRows(SimdTarget simd, const GatherRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_GATHER_ROWS_H_
