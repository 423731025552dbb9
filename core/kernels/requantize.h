// Stores rows as rows of another dtype in another cache.
#ifndef KVEVICT_CORE_KERNELS_REQUANTIZE_H_
#define KVEVICT_CORE_KERNELS_REQUANTIZE_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// The most adjacent heads that are processed together.
inline constexpr uint32_t kMostHeads = 8;

struct RequantizeRowsArgs {
  // Per head, without overlap. Dtypes can be scored and are the same for all
  // heads.
  RowSource from[kMostHeads], to[kMostHeads];
  uint32_t n_heads = 1;
  const int32_t* keep = nullptr;  // any rows of `from`; nullptr: 0, 1, ...
  uint32_t begin = 0;             // entries [begin, end) of the list
  uint32_t end = 0;
  uint32_t first_row = 0;  // row of `to` for the list's first entry
  bool streams = false;    // rows are not read soon: written past the caches
};

// Stores row keep[i] of every head as row first_row + i: read as floats, and
// stored as docs/dtypes.md says, with the scale and minimum of the row if those
// move. Targets with a fused multiply-add make the same bytes.
void RequantizeRows(SimdTarget simd, const RequantizeRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REQUANTIZE_H_
