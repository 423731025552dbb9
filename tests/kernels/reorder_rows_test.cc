// Rows in any order against a copy on every target. Nothing else is touched.
#include "core/kernels/reorder_rows.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/kernels/moved_rows_cases.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

using Slots = std::vector<int32_t>;

Slots Ascending(uint32_t n) {
  Slots slots(n);
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

// The moves of a list, in memory of exactly the size they may take.
std::vector<int32_t> MovesOf(const Slots& slots) {
  const auto n = static_cast<uint32_t>(slots.size());
  std::vector<int32_t> moves(MoveWords(n), 0x5A5A5A5A);
  OrderMoves(slots.data(), n, moves.data());
  return moves;
}

void ExpectMoved(SimdTarget simd, const MovedRows& rows, RowMemory& memory,
                 const Slots& slots, const char* what) {
  const std::vector<uint8_t> before = memory.Bytes();
  std::vector<uint8_t> expected = before;
  for (uint32_t e = 0; e < rows.n_elements; ++e) {
    for (uint32_t i = 0; i < slots.size(); ++i) {
      const auto from = static_cast<uint32_t>(slots[i]);
      std::memcpy(&expected[OffsetOf(rows, memory, i, e)],
                  &before[OffsetOf(rows, memory, from, e)], rows.row_bytes);
    }
  }
  const std::vector<int32_t> moves = MovesOf(slots);
  GuardedPages saved(rows.row_bytes);
  ReorderRowsInPlace(simd, {rows, slots.data(), moves.data(), saved.data()});
  for (size_t i = 0; i < memory.n_bytes(); ++i) {
    if (memory.data()[i] != expected[i]) {
      cr_assert_fail("%s, rows of %u bytes, %zu slots: byte %zu", what,
                     rows.row_bytes, slots.size(), i);
    }
  }
}

// Any slots with repeats, or a permutation of which some places are listed.
Slots RandomSlots(Random& random) {
  Slots slots = Ascending(kRows);
  if (random.Below(2) == 0) {
    for (int32_t& slot : slots) {
      slot = static_cast<int32_t>(random.Below(kRows));
    }
  } else {
    for (uint32_t i = kRows; i > 1; --i) {
      std::swap(slots[i - 1], slots[random.Below(i)]);
    }
  }
  slots.resize(random.Below(2) == 0 ? kRows : random.Below(kRows + 1));
  return slots;
}

TestSuite(reorder_rows);

#define REORDER_TEST(what, ForEachCase)                                   \
  Test(reorder_rows, what) {                                              \
    Random random(TestSeed("reorder_rows/" #what));                       \
    ForEachTarget([&](SimdTarget simd) {                                  \
      ForEachCase(random, [&](const MovedRows& rows, RowMemory& memory) { \
        ExpectMoved(simd, rows, memory, RandomSlots(random), simd.name);  \
      });                                                                 \
    });                                                                   \
  }

REORDER_TEST(packed_rows_of_every_size, ForPackedRowsOfEverySize)
REORDER_TEST(rows_with_gaps_and_from_the_end, ForRowsWithGapsAndFromTheEnd)
REORDER_TEST(rows_whose_elements_are_apart, ForRowsWhoseElementsAreApart)
REORDER_TEST(paged_rows, ForPagedRows)

// ---- Orders ----

// The rows are numbered, with 8 bytes each.
void ExpectOrder(const Slots& slots, const char* what) {
  Random random(1);
  RowMemory memory(kRows * 8, random);
  MovedRows rows;
  rows.rows.base = memory.data();
  rows.rows.row_stride = rows.row_bytes = 8;
  ExpectMoved(SimdTargetAt(0), rows, memory, slots, what);
}

Test(reorder_rows, every_list_of_a_few_rows) {
  for (uint32_t n_rows = 1; n_rows <= 5; ++n_rows) {
    for (uint32_t n = 0; n <= n_rows; ++n) {
      Slots slots(n, 0);
      for (;;) {
        ExpectOrder(slots, "a few rows");
        uint32_t i = 0;
        while (i < n && ++slots[i] == static_cast<int32_t>(n_rows)) {
          slots[i++] = 0;
        }
        if (i == n) break;
      }
    }
  }
}

// Rows that are in place do not move, and every other one moves once.
Test(reorder_rows, rows_in_place_do_not_move) {
  cr_expect_eq(MovesOf(Ascending(kRows))[0], 0);
  Random random(TestSeed("reorder_rows/rows_in_place_do_not_move"));
  for (int round = 0; round < 200; ++round) {
    const Slots slots = RandomSlots(random);
    const std::vector<int32_t> moves = MovesOf(slots);
    Slots moved(moves.begin() + 1, moves.begin() + 1 + moves[0]);
    for (int32_t& row : moved) row = row < 0 ? ~row : row;
    std::sort(moved.begin(), moved.end());
    Slots expected;
    for (int32_t i = 0; i < static_cast<int32_t>(slots.size()); ++i) {
      if (slots[i] != i) expected.push_back(i);
    }
    cr_assert(moved == expected, "round %d", round);
  }
}

}  // namespace
}  // namespace kvevict
