// Rows in memory as the kernels see them: addresses and strides, no policy.
#ifndef KVEVICT_CORE_KERNELS_ROW_SOURCE_H_
#define KVEVICT_CORE_KERNELS_ROW_SOURCE_H_

#include <cstdint>

#include "core/dtype.h"

namespace kvevict {

// Strided rows of one head. Row r, element e is at
// base + r * row_stride + e * element_stride; paged where block_size > 0:
// base + block_table[r / block_size] * block_stride + (r % block_size) * ...
struct RowSource {
  const uint8_t* base = nullptr;
  int64_t row_stride = 0;
  int64_t element_stride = 0;
  int64_t block_stride = 0;
  const int32_t* block_table = nullptr;
  uint32_t block_size = 0;
  DType dtype = DType::kF32;

  const uint8_t* Row(uint32_t r) const {
    if (block_size == 0) return base + int64_t{r} * row_stride;
    return base + block_table[r / block_size] * block_stride +
           int64_t{r % block_size} * row_stride;
  }

  // The rows of a head whose rows lie `bytes` from these.
  RowSource At(int64_t bytes) const {
    RowSource rows = *this;
    rows.base += bytes;
    return rows;
  }
};

// Heads whose rows alternate in memory, and whose kernel takes some rows of each in
// turn, so that memory is read as it lies.
struct SideBySide {
  uint32_t n_heads = 1;
  int64_t stride = 0;       // bytes from a head's rows to those of the next one
  uint64_t out_stride = 0;  // elements from a head's results to the next one's
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ROW_SOURCE_H_
