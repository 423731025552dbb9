// Rows of numbers in memory, in any layout that a RowSource can describe.
#ifndef KVEVICT_TESTS_KERNELS_ROW_STORE_H_
#define KVEVICT_TESTS_KERNELS_ROW_STORE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels/row_source.h"
#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"

namespace kvevict {

struct RowLayout {
  const char* name = "packed";
  DType dtype = DType::kF32;
  uint32_t element_step = 1;   // elements from one to the next
  bool reversed_rows = false;  // negative row stride
  bool reversed_elements = false;
  uint32_t row_gap_bytes = 0;  // odd: every address is misaligned
  uint32_t block_size = 0;     // > 0: paged, blocks in an odd order
  bool transposed = false;     // element-major, [dim, n_rows]
  bool grouped = false;        // [groups of elements, n_rows, elements of one]
  bool far = false;            // a ring of blocks with addresses, in its order
  GuardedPages::Against guard = GuardedPages::Against::kEnd;
};

// Every layout of a dtype, packed rows first, and any of them.
std::vector<RowLayout> EveryLayout(DType dtype);
RowLayout AnyLayout(Random& random, DType dtype);

// The nearest (f16: one of the two nearest) numbers that a dtype can hold.
std::vector<float> RoundTo(DType dtype, std::vector<float> values);

// The most that rounding a number to a dtype changes it.
double StoreError(DType dtype, double v);

// An element of rows of such a dtype.
float ElementOf(const RowSource& rows, uint32_t row, uint32_t i);

// Holds rows[n_rows, dim], whose values the dtype can hold. One end of the memory
// touches an inaccessible page, and bytes between the elements are NaN patterns.
class RowStore {
 public:
  RowStore(const std::vector<float>& rows, uint32_t dim,
           const RowLayout& layout);

  const RowSource& source() const { return source_; }
  std::span<uint8_t> bytes() const { return {memory_.data(), n_bytes_}; }

 private:
  size_t n_bytes_;
  GuardedPages memory_;
  std::vector<int32_t> block_table_;
  std::vector<uint64_t> addresses_;
  RowSource source_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_ROW_STORE_H_
