// Compaction taken back, against a copy on every target. Nothing else is touched.
#include "core/kernels/restore_rows.h"

#include <criterion/criterion.h>

#include <cstring>
#include <vector>

#include "tests/kernels/moved_rows_cases.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

// Any of n rows, many or few; sometimes the first or the last.
std::vector<int32_t> RandomEvicted(uint32_t n, Random& random) {
  const uint32_t density = random.Below(11);
  std::vector<int32_t> evicted;
  for (uint32_t i = 0; i < n; ++i) {
    if (random.Below(10) < density) evicted.push_back(static_cast<int32_t>(i));
  }
  evicted.push_back(static_cast<int32_t>(n));  // as lists have it at their end
  return evicted;
}

// Rows that were evicted, packed or with gaps.
struct Saved {
  MovedRows rows;
  RowMemory memory;

  Saved(const MovedRows& like, uint32_t n, int64_t gap, Random& random)
      : rows(like),
        memory(
            static_cast<size_t>((like.row_bytes + gap) * like.n_elements * n),
            random) {
    rows.element_stride_bytes = like.row_bytes + gap;
    rows.rows = {};
    rows.rows.row_stride = rows.element_stride_bytes * like.n_elements;
    rows.rows.base = memory.data();
  }
};

void ExpectRestored(const MovedRows& rows, RowMemory& memory, Random& random,
                    SimdTarget simd) {
  const uint32_t n_rows =
      random.Below(4) == 0 ? random.Below(kRows + 1) : kRows;
  const std::vector<int32_t> evicted = RandomEvicted(n_rows, random);
  const auto n = static_cast<uint32_t>(evicted.size()) - 1;
  Saved saved(rows, n, random.Below(2) * random.Below(9), random);
  const std::vector<uint8_t> before = memory.Bytes();
  const std::vector<uint8_t> saved_before = saved.memory.Bytes();
  std::vector<uint8_t> expected = before;
  for (uint32_t e = 0; e < rows.n_elements; ++e) {
    uint32_t gone = 0;
    for (uint32_t i = 0; i < n_rows; ++i) {
      const bool was_evicted = evicted[gone] == static_cast<int32_t>(i);
      const uint8_t* const from =
          was_evicted
              ? &saved_before[OffsetOf(saved.rows, saved.memory, gone, e)]
              : &before[OffsetOf(rows, memory, i - gone, e)];
      std::memcpy(&expected[OffsetOf(rows, memory, i, e)], from,
                  rows.row_bytes);
      gone += was_evicted;
    }
  }
  RestoreRows(simd, {rows, saved.rows, evicted.data(), n, n_rows});
  if (memory.Bytes() == expected && saved.memory.Bytes() == saved_before)
    return;
  cr_assert_fail("%s, rows of %u bytes, %u of %u evicted", simd.name,
                 rows.row_bytes, n, n_rows);
}

TestSuite(restore_rows);

#define RESTORE_TEST(name, ForEachCase)                                   \
  Test(restore_rows, name) {                                              \
    Random random(TestSeed("restore_rows/" #name));                       \
    ForEachTarget([&](SimdTarget simd) {                                  \
      ForEachCase(random, [&](const MovedRows& rows, RowMemory& memory) { \
        for (int i = 0; i < 3; ++i) {                                     \
          ExpectRestored(rows, memory, random, simd);                     \
        }                                                                 \
      });                                                                 \
    });                                                                   \
  }

RESTORE_TEST(packed_rows_of_every_size, ForPackedRowsOfEverySize)
RESTORE_TEST(rows_with_gaps_and_from_the_end, ForRowsWithGapsAndFromTheEnd)
RESTORE_TEST(rows_whose_elements_are_apart, ForRowsWhoseElementsAreApart)
RESTORE_TEST(paged_rows, ForPagedRows)

}  // namespace
}  // namespace kvevict
