// Rows whose scales and minima are shared by groups of them, one per element.
#ifndef KVEVICT_CORE_KERNELS_REGROUP_H_
#define KVEVICT_CORE_KERNELS_REGROUP_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

inline constexpr uint32_t kMostGroupRows = 256;

struct RegroupRowsArgs {
  RowSource from, to;     // of a head
  bool in_place = false;  // they are one, and rows move down, if they move
  const int32_t* keep = nullptr;  // any rows of `from`; nullptr: 0, 1, ...
  uint32_t first_row = 0;         // of `to`, for the list's first
  // Rows of `to` that are written, of these: where `begin` is within a group, with
  // those before it.
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Row keep[i] to row first_row + i, group by group of `to`: read as floats, stored with a
// scale and a minimum of each element as docs/dtypes.md says. All targets make the same
// bytes of the same floats.
void RegroupRows(SimdTarget simd, const RegroupRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REGROUP_H_
