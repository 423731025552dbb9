// Rows that become rows of another dtype on their way to another cache.
#ifndef KVEVICT_CORE_KERNELS_REQUANTIZE_H_
#define KVEVICT_CORE_KERNELS_REQUANTIZE_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// Heads that are dealt with side by side.
inline constexpr uint32_t kMostHeads = 8;

struct RequantizeRowsArgs {
  // Of each head, apart; dtypes that can be scored, the same of all.
  RowSource from[kMostHeads], to[kMostHeads];
  uint32_t n_heads = 1;
  const int32_t* keep = nullptr;  // any rows of `from`; nullptr: 0, 1, ...
  uint32_t begin = 0;             // [begin, end) of the list
  uint32_t end = 0;
  uint32_t first_row = 0;  // of `to`, for the list's first
  bool streams = false;    // nobody reads them soon: past the caches
};

// Row keep[i] of every head to row first_row + i: read as floats, stored as docs/dtypes.md says, with
// the scale and minimum of the row where those move. Targets with a fused multiply-add
// make the same bytes.
void RequantizeRows(SimdTarget simd, const RequantizeRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REQUANTIZE_H_
