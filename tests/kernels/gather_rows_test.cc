// Compaction of rows against a copy, on every target; nothing else is touched.
#include "core/kernels/gather_rows.h"

#include <criterion/criterion.h>

#include <cstring>
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

// Moves kept rows and checks every byte.
void ExpectMoved(const MovedRows& rows, RowMemory& memory,
                 const std::vector<int32_t>& keep, SimdTarget simd) {
  const std::vector<uint8_t> before = memory.Bytes();
  std::vector<uint8_t> expected = before;
  // Of a row whose content is open now.
  std::vector<bool> is_row(memory.n_bytes(), false);
  for (uint32_t e = 0; e < rows.n_elements; ++e) {
    for (uint32_t i = 0; i < kRows; ++i) {
      for (uint32_t b = 0; b < rows.row_bytes; ++b) {
        is_row[OffsetOf(rows, memory, i, e) + b] = i >= keep.size();
      }
    }
    for (uint32_t i = 0; i < keep.size(); ++i) {
      const auto from = static_cast<uint32_t>(keep[i]);
      std::memcpy(&expected[OffsetOf(rows, memory, i, e)],
                  &before[OffsetOf(rows, memory, from, e)], rows.row_bytes);
    }
  }
  GatherRowsInPlace(simd,
                    {rows, keep.data(), static_cast<uint32_t>(keep.size())});
  for (size_t i = 0; i < memory.n_bytes(); ++i) {
    if (memory.data()[i] != expected[i] && !is_row[i]) {
      cr_assert_fail("%s, rows of %u bytes, %zu kept: byte %zu", simd.name,
                     rows.row_bytes, keep.size(), i);
    }
  }
}

TestSuite(gather_rows);

#define GATHER_TEST(name, ForEachCase)                                    \
  Test(gather_rows, name) {                                               \
    Random random(TestSeed("gather_rows/" #name));                        \
    ForEachTarget([&](SimdTarget simd) {                                  \
      ForEachCase(random, [&](const MovedRows& rows, RowMemory& memory) { \
        ExpectMoved(rows, memory, RandomKeep(random), simd);              \
      });                                                                 \
    });                                                                   \
  }

GATHER_TEST(packed_rows_of_every_size, ForPackedRowsOfEverySize)
GATHER_TEST(rows_with_gaps_and_from_the_end, ForRowsWithGapsAndFromTheEnd)
GATHER_TEST(rows_whose_elements_are_apart, ForRowsWhoseElementsAreApart)
GATHER_TEST(paged_rows, ForPagedRows)

}  // namespace
}  // namespace kvevict
