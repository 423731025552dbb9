// Stores rows in groups that share scales and minima, one per element of a row.
#ifndef KVEVICT_CORE_KERNELS_REGROUP_H_
#define KVEVICT_CORE_KERNELS_REGROUP_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

inline constexpr uint32_t kMostGroupRows = 256;

struct RegroupRowsArgs {
  RowSource from, to;             // rows of a head
  bool in_place = false;          // `to` is `from`, and rows move down or stay
  const int32_t* keep = nullptr;  // any rows of `from`; nullptr: 0, 1, ...
  uint32_t first_row = 0;         // row of `to` for the list's first entry
  // Rows [begin, end) of `to` are written. If `begin` is within a group the
  // rows before it in the group are written too.
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Stores row keep[i] as row first_row + i, group by group of `to`: read as
// floats, and stored with a scale and a minimum per element as docs/dtypes.md
// says. All targets make the same bytes from the same floats.
void RegroupRows(SimdTarget simd, const RegroupRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REGROUP_H_
