// Means over the queries that could see a slot, on every target.
#include "core/kernels/attention_sums.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

TestSuite(attention_sums);

// A list after an eviction: the first n_listed positions at random, then those from
// `tail` on.
struct Held {
  std::vector<int32_t> listed;
  uint32_t tail;
  uint32_t n_tokens;

  Held(uint32_t n_listed, uint32_t n_tokens, Random& random)
      : tail(0), n_tokens(n_tokens) {
    for (uint32_t i = 0; i < n_listed; ++i) {
      tail += random.Below(5);
      listed.push_back(static_cast<int32_t>(tail++));
    }
    tail += random.Below(1000);
  }
  uint32_t n_seen() const {
    return tail + n_tokens - static_cast<uint32_t>(listed.size());
  }
  double Queries(uint32_t slot) const {
    const size_t n = listed.size();
    const double position =
        slot < n ? listed[slot] : double{1} * tail + slot - n;
    return n_seen() - position;
  }
};

// One rounding of a division, of a count that is exact.
Test(attention_sums, are_divided_by_the_queries_that_saw_the_slot) {
  Random random(TestSeed("attention_sums/are_divided"));
  const uint32_t sizes[] = {1, 2, 3, 7, 16, 17, 33, 130};
  for (const uint32_t n_tokens : sizes) {
    for (const uint32_t n_listed : {0u, 1u, n_tokens / 2, n_tokens}) {
      const Held held(n_listed, n_tokens, random);
      SlotPositions slots;
      // The second of two lists.
      std::vector<int32_t> lists(n_listed, -7);
      lists.insert(lists.end(), held.listed.begin(), held.listed.end());
      slots.kept = lists.data();
      slots.n_kept = n_listed;
      slots.n_lists = 2;
      slots.tail_position = held.tail;
      const uint32_t begin = random.Below(n_tokens);
      const uint32_t n = n_tokens - begin;
      std::vector<float> sums(n);
      for (float& sum : sums) sum = random.Gaussian();
      std::vector<float> first;
      ForEachTarget([&](SimdTarget simd) {
        GuardedPages pages(n * sizeof(float));
        auto* const out = reinterpret_cast<float*>(pages.data());
        std::memcpy(out, sums.data(), n * sizeof(float));
        DivideByQueries(simd, slots, 1, begin, n, held.n_seen(), out);
        for (uint32_t i = 0; i < n; ++i) {
          const double expected = sums[i] / held.Queries(begin + i);
          cr_assert(std::abs(out[i] - expected) <= 0x1p-24 * std::abs(expected),
                    "%s: slot %u of %u, %u listed: %.9g, not %.9g", simd.name,
                    begin + i, n_tokens, n_listed, static_cast<double>(out[i]),
                    expected);
        }
        if (first.empty()) first.assign(out, out + n);
        cr_assert(std::memcmp(first.data(), out, n * sizeof(float)) == 0,
                  "%s: other bits", simd.name);
      });
    }
  }
}

Test(attention_sums, of_some_rows_are_divided_by_those_that_see_the_slot) {
  for (const uint32_t n_tokens : {1u, 2u, 17u, 130u}) {
    for (const uint32_t n_rows : {1u, n_tokens / 2 + 1, n_tokens}) {
      const uint32_t begin = n_tokens / 3;
      const uint32_t n = n_tokens - begin;
      ForEachTarget([&](SimdTarget simd) {
        GuardedPages pages(n * sizeof(float));
        auto* const out = reinterpret_cast<float*>(pages.data());
        for (uint32_t i = 0; i < n; ++i) out[i] = 1.0f;
        DivideByRows(simd, n_tokens, n_rows, begin, n, out);
        for (uint32_t i = 0; i < n; ++i) {
          const uint32_t later = std::min(n_rows, n_tokens - begin - i);
          cr_assert(out[i] == 1.0f / static_cast<float>(later),
                    "%s: slot %u of %u, %u rows: %g", simd.name, begin + i,
                    n_tokens, n_rows, static_cast<double>(out[i]));
        }
      });
    }
  }
}

}  // namespace
}  // namespace kvevict
