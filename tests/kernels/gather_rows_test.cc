// Compaction of rows, in place and to other memory, against a copy on every target.
// Nothing else is touched.
#include "core/kernels/gather_rows.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/kernels/moved_rows_cases.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

std::vector<int32_t> RandomKeep(Random& random) {
  std::vector<int32_t> all(kRows), keep;
  std::iota(all.begin(), all.end(), 0);
  const uint32_t density = 1 + random.Below(10);
  const bool runs = random.Below(2) == 0;
  for (int32_t row : all) {
    const uint32_t draw =
        runs ? static_cast<uint32_t>(row / 5 * 7 % 10) : random.Below(10);
    if (draw < density) keep.push_back(row);
  }
  return keep;
}

// Returns the slots from a row on.
std::vector<int32_t> From(uint32_t first, const std::vector<int32_t>& keep) {
  return {
      std::lower_bound(keep.begin(), keep.end(), static_cast<int32_t>(first)),
      keep.end()};
}

// Moves kept rows from first_row on down to it, and checks every byte.
void ExpectMoved(const MovedRows& rows, RowMemory& memory, uint32_t first_row,
                 const std::vector<int32_t>& keep, SimdTarget simd) {
  const std::vector<uint8_t> before = memory.Bytes();
  std::vector<uint8_t> expected = before;
  // The content of these rows is unspecified now.
  std::vector<bool> is_row(memory.n_bytes(), false);
  for (uint32_t e = 0; e < rows.n_elements; ++e) {
    for (uint32_t i = first_row + keep.size(); i < kRows; ++i) {
      for (uint32_t b = 0; b < rows.row_bytes; ++b) {
        is_row[OffsetOf(rows, memory, i, e) + b] = true;
      }
    }
    for (uint32_t i = 0; i < keep.size(); ++i) {
      const auto from = static_cast<uint32_t>(keep[i]);
      std::memcpy(&expected[OffsetOf(rows, memory, first_row + i, e)],
                  &before[OffsetOf(rows, memory, from, e)], rows.row_bytes);
    }
  }
  GatherRows(simd, {rows, rows, true, keep.data(),
                    static_cast<uint32_t>(keep.size()), first_row});
  for (size_t i = 0; i < memory.n_bytes(); ++i) {
    if (memory.data()[i] != expected[i] && !is_row[i]) {
      cr_assert_fail("%s, rows of %u bytes, %zu kept: byte %zu", simd.name,
                     rows.row_bytes, keep.size(), i);
    }
  }
}

// Memory with room for n_rows to which the pieces of `rows` go: packed or with
// gaps, contiguous or paged.
struct Target {
  MovedRows rows;
  std::vector<int32_t> table;
  std::unique_ptr<RowMemory> memory;

  Target(const MovedRows& from, uint32_t n_rows, Random& random) : rows(from) {
    const uint32_t gap = random.Below(2) * random.Below(9);
    rows.element_stride_bytes = from.row_bytes + gap;
    rows.rows = {};
    rows.rows.row_stride =
        rows.element_stride_bytes * from.n_elements + random.Below(2) * gap;
    rows.rows.block_size = random.Below(2) * (1 + random.Below(7));
    uint32_t n_slots = n_rows;
    if (const uint32_t size = rows.rows.block_size; size > 0) {
      table.resize((n_rows + size - 1) / size);
      std::iota(table.rbegin(), table.rend(), 0);
      rows.rows.block_table = table.data();
      rows.rows.block_stride = size * rows.rows.row_stride;
      n_slots = static_cast<uint32_t>(table.size()) * size;
    }
    memory =
        std::make_unique<RowMemory>(n_slots * rows.rows.row_stride, random);
    rows.rows.base = memory->data();
  }
};

// Copies kept rows to other memory and checks every byte of both.
void ExpectCopied(const MovedRows& rows, RowMemory& memory, uint32_t first_row,
                  const std::vector<int32_t>& keep, Random& random,
                  SimdTarget simd) {
  Target to(rows, first_row + static_cast<uint32_t>(keep.size()) + 2, random);
  const std::vector<uint8_t> before = memory.Bytes();
  std::vector<uint8_t> expected = to.memory->Bytes();
  for (uint32_t e = 0; e < rows.n_elements; ++e) {
    for (uint32_t i = 0; i < keep.size(); ++i) {
      const auto from = static_cast<uint32_t>(keep[i]);
      std::memcpy(&expected[OffsetOf(to.rows, *to.memory, first_row + i, e)],
                  &before[OffsetOf(rows, memory, from, e)], rows.row_bytes);
    }
  }
  GatherRows(simd, {rows, to.rows, false, keep.data(),
                    static_cast<uint32_t>(keep.size()), first_row});
  if (memory.Bytes() == before && to.memory->Bytes() == expected) return;
  cr_assert_fail("%s, rows of %u bytes, %zu copied to row %u", simd.name,
                 rows.row_bytes, keep.size(), first_row);
}

TestSuite(gather_rows);

#define GATHER_TEST(name, ForEachCase)                                    \
  Test(gather_rows, name) {                                               \
    Random random(TestSeed("gather_rows/" #name));                        \
    ForEachTarget([&](SimdTarget simd) {                                  \
      ForEachCase(random, [&](const MovedRows& rows, RowMemory& memory) { \
        const std::vector<int32_t> keep = RandomKeep(random);             \
        const uint32_t first = random.Below(2) * random.Below(kRows);     \
        ExpectCopied(rows, memory, first, keep, random, simd);            \
        ExpectMoved(rows, memory, first, From(first, keep), simd);        \
      });                                                                 \
    });                                                                   \
  }

GATHER_TEST(packed_rows_of_every_size, ForPackedRowsOfEverySize)
GATHER_TEST(rows_with_gaps_and_from_the_end, ForRowsWithGapsAndFromTheEnd)
GATHER_TEST(rows_whose_elements_are_apart, ForRowsWhoseElementsAreApart)
GATHER_TEST(paged_rows, ForPagedRows)

}  // namespace
}  // namespace kvevict
