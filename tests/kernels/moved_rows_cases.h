// Rows laid out in many ways, between guard pages, for kernels that move them.
#ifndef KVEVICT_TESTS_KERNELS_MOVED_ROWS_CASES_H_
#define KVEVICT_TESTS_KERNELS_MOVED_ROWS_CASES_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/kernels/moved_rows.h"
#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"

namespace kvevict {

constexpr uint32_t kRows = 40;

// Memory with random bytes, which one end of the rows touches.
class RowMemory {
 public:
  RowMemory(size_t n_bytes, Random& random,
            GuardedPages::Against against = GuardedPages::Against::kEnd)
      : pages_(n_bytes, against), n_bytes_(n_bytes) {
    for (size_t i = 0; i < n_bytes; ++i) {
      data()[i] = static_cast<uint8_t>(random.Next());
    }
  }
  uint8_t* data() { return pages_.data(); }
  size_t n_bytes() const { return n_bytes_; }
  std::vector<uint8_t> Bytes() { return {data(), data() + n_bytes_}; }

 private:
  GuardedPages pages_;
  size_t n_bytes_;
};

// The byte offset of a row's element.
inline size_t OffsetOf(const MovedRows& rows, RowMemory& memory, uint32_t row,
                       uint32_t element) {
  return static_cast<size_t>(rows.rows.Row(row) - memory.data() +
                             element * rows.element_stride_bytes);
}

// The following call check(const MovedRows&, RowMemory&) for kRows rows each.

template <class Check>
void ForPackedRowsOfEverySize(Random& random, const Check& check) {
  for (uint32_t bytes = 1; bytes <= 5000; bytes += 1 + bytes / 9) {
    for (const auto against :
         {GuardedPages::Against::kEnd, GuardedPages::Against::kBegin}) {
      RowMemory memory(kRows * bytes, random, against);
      MovedRows rows;
      rows.rows.base = memory.data();
      rows.rows.row_stride = bytes;
      rows.row_bytes = bytes;
      check(rows, memory);
    }
  }
}

template <class Check>
void ForRowsWithGapsAndFromTheEnd(Random& random, const Check& check) {
  for (uint32_t bytes : {1u, 3u, 16u, 33u, 64u, 129u, 2048u, 2049u}) {
    for (uint32_t gap : {0u, 1u, 7u}) {
      for (bool backwards : {false, true}) {
        RowMemory memory(kRows * (bytes + gap) - gap, random);
        MovedRows rows;
        rows.row_bytes = bytes;
        rows.rows.row_stride = int64_t{bytes} + gap;
        rows.rows.base = memory.data();
        if (backwards) {
          rows.rows.base += memory.n_bytes() - bytes;
          rows.rows.row_stride = -rows.rows.row_stride;
        }
        check(rows, memory);
      }
    }
  }
}

template <class Check>
void ForRowsWhoseElementsAreApart(Random& random, const Check& check) {
  for (uint32_t element : {1u, 2u, 4u}) {
    for (uint32_t n_elements : {2u, 5u, 64u}) {
      RowMemory memory(size_t{kRows} * n_elements * element, random);
      MovedRows rows;  // transposed: [n_elements, rows]
      rows.rows.base = memory.data();
      rows.rows.row_stride = element;
      rows.row_bytes = element;
      rows.n_elements = n_elements;
      rows.element_stride_bytes = int64_t{kRows} * element;
      check(rows, memory);
    }
  }
}

template <class Check>
void ForPagedRows(Random& random, const Check& check) {
  for (uint32_t block_size : {1u, 3u, 8u, 64u}) {
    for (uint32_t bytes : {2u, 40u, 256u, 4096u}) {
      const uint32_t n_blocks = (kRows + block_size - 1) / block_size;
      std::vector<int32_t> table(n_blocks);
      std::iota(table.begin(), table.end(), 0);
      for (uint32_t i = n_blocks; i > 1; --i) {
        std::swap(table[i - 1], table[random.Below(i)]);
      }
      const size_t block_bytes = size_t{block_size} * bytes + 5;
      RowMemory memory(n_blocks * block_bytes - 5, random);
      MovedRows rows;
      rows.rows.base = memory.data();
      rows.rows.row_stride = bytes;
      rows.rows.block_size = block_size;
      rows.rows.block_stride = static_cast<int64_t>(block_bytes);
      rows.rows.block_table = table.data();
      rows.row_bytes = bytes;
      check(rows, memory);
    }
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_MOVED_ROWS_CASES_H_
