// Rows in memory as the kernels see them: addresses and strides, no policy.
#ifndef KVEVICT_CORE_KERNELS_ROW_SOURCE_H_
#define KVEVICT_CORE_KERNELS_ROW_SOURCE_H_

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace kvevict {

// Scales or minima: a number for each row, or one for all rows. base nullptr:
// none.
struct RowNumbers {
  const uint8_t* base = nullptr;
  int64_t row_stride = 0;
  int64_t block_stride = 0;
  const uint64_t* addresses = nullptr;
  uint64_t origin = 0;
  DType dtype = DType::kF32;  // f32, f16 or bf16
  bool is_plain = true;       // as in RowSource
  bool is_constant = false;   // one number for all rows, at base
  int64_t head_stride = 0;    // to the numbers of the next head's rows
  uint32_t group_rows = 0;    // rows that share one per element; 0: one per row
};

// Rows from `first` on, whose elements are packed floats. The other rows of the
// cache are quantized.
struct RecentRows {
  const uint8_t* base = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  uint32_t first = UINT32_MAX;
  DType dtype = DType::kF32;
};

// Strided rows of one head. Row r, element e is at
// base + r * row_stride + e * element_stride; paged where block_size > 0:
// base + block_table[r / block_size] * block_stride + (r % block_size) * ...
// In groups element e is at (e / group_elems) * group_stride
// + (e % group_elems) * element_stride of its row.
struct RowSource {
  const uint8_t* base = nullptr;
  int64_t row_stride = 0;
  int64_t element_stride = 0;
  int64_t block_stride = 0;
  const int32_t* block_table = nullptr;
  uint32_t block_size = 0;
  DType dtype = DType::kF32;
  uint32_t group_elems = 0;  // 0: one group
  // If false, block_size > 0 and rows are not only found by the block table.
  bool is_plain = true;
  int64_t group_stride = 0;
  // Addresses of blocks. `base` is where the rows of a block at `origin` would
  // be.
  const uint64_t* addresses = nullptr;
  uint64_t origin = 0;
  uint32_t ring_slots = 0;  // 0: row 0 is the first
  uint32_t ring_first = 0;
  // of a row; only for dtypes that are packed over a row
  uint32_t n_elements = 0;
  // For quantized rows: the factor of codes, and what is added to the product.
  RowNumbers scale;
  RowNumbers minimum;
  RecentRows recent;

  const uint8_t* Row(uint32_t r) const {
    if (block_size == 0) return base + int64_t{r} * row_stride;
    if (!is_plain) return FarRow(r);
    return base + block_table[r / block_size] * block_stride +
           int64_t{r % block_size} * row_stride;
  }

  // The address of a row's number, which is in blocks like the rows, or of its
  // elements' numbers.
  const uint8_t* Number(const RowNumbers& numbers, uint32_t r) const {
    if (numbers.is_constant) return numbers.base;
    if (numbers.group_rows != 0) {
      const uint32_t in_block = block_size == 0 ? r : r % block_size;
      r = r - in_block + in_block / numbers.group_rows;
    }
    if (block_size == 0) return numbers.base + int64_t{r} * numbers.row_stride;
    if (numbers.is_plain) {
      return numbers.base + block_table[r / block_size] * numbers.block_stride +
             int64_t{r % block_size} * numbers.row_stride;
    }
    RowSource rows = *this;
    rows.base = numbers.base;
    rows.row_stride = numbers.row_stride;
    rows.block_stride = numbers.block_stride;
    rows.addresses = numbers.addresses;
    rows.origin = numbers.origin;
    rows.is_plain = numbers.is_plain;
    return rows.Row(r);
  }

  // Advances to the rows of the n-th next head. `stride` is from head to head.
  void NextHead(int64_t n, int64_t stride) {
    base += n * stride;
    scale.base += n * scale.head_stride;
    minimum.base += n * minimum.head_stride;
    recent.base += n * recent.head_stride;
  }

  // Whether codes are decoded with a scale per row, or one for all rows.
  bool IsCodedByRow() const {
    return scale.group_rows == 0 && recent.first == UINT32_MAX;
  }

  // The rows that are not quantized. Their row 0 is row recent.first of these.
  RowSource Recent() const {
    RowSource rows;
    rows.base = recent.base;
    rows.row_stride = recent.row_stride;
    rows.dtype = recent.dtype;
    rows.element_stride = ElementBytes(recent.dtype);
    rows.n_elements = n_elements;
    return rows;
  }

  // The rows of a head that are `bytes` from these. Only for rows without
  // scales and minima.
  RowSource At(int64_t bytes) const {
    RowSource rows = *this;
    rows.base += bytes;
    return rows;
  }

  // The offset of element e from the first of its row.
  int64_t Element(uint64_t e) const {
    if (group_elems == 0) return static_cast<int64_t>(e) * element_stride;
    return static_cast<int64_t>(e / group_elems) * group_stride +
           static_cast<int64_t>(e % group_elems) * element_stride;
  }
  // Whether the elements of a row are packed.
  bool IsPacked(size_t element_bytes) const {
    return group_elems == 0 &&
           element_stride == static_cast<int64_t>(element_bytes);
  }

 private:
  // Rows of a ring, of blocks with addresses, of blocks without a table, and
  // recent rows.
  [[gnu::noinline]] const uint8_t* FarRow(uint32_t r) const {
    if (r >= recent.first) {
      return recent.base + int64_t{r - recent.first} * recent.row_stride;
    }
    if (ring_slots != 0) {
      r = r < ring_slots - ring_first ? r + ring_first
                                      : r - (ring_slots - ring_first);
    }
    const uint32_t i = r / block_size;
    const int64_t id = block_table == nullptr ? int64_t{i} : block_table[i];
    const uint64_t block = addresses == nullptr
                               ? static_cast<uint64_t>(id * block_stride)
                               : addresses[id] - origin;
    const int64_t row = int64_t{r % block_size} * row_stride;
    return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(base) +
                                            block + static_cast<uint64_t>(row));
  }
};

// Contiguous rows of a floating-point dtype; smaller than a RowSource, since
// many are stored.
struct PlainRows {
  const uint8_t* base = nullptr;
  int64_t row_stride = 0;
  int64_t element_stride = 0;
  DType dtype = DType::kF32;

  RowSource Source() const {
    RowSource rows;
    rows.base = base;
    rows.row_stride = row_stride;
    rows.element_stride = element_stride;
    rows.dtype = dtype;
    return rows;
  }
};

// Heads whose rows alternate in memory. The kernel takes some rows of each in
// turn, so that memory is read in order.
struct SideBySide {
  uint32_t n_heads = 1;
  int64_t stride = 0;       // bytes from a head's rows to those of the next one
  uint64_t out_stride = 0;  // elements from a head's results to the next one's
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ROW_SOURCE_H_
