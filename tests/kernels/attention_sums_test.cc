// Means over the queries that could see a slot, on every target.
#include "core/kernels/attention_sums.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

TestSuite(attention_sums);

// A list after an eviction: the first n_listed positions are random, the others go
// on from `tail`.
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

// A division of an exact count rounds once.
Test(attention_sums, are_divided_by_the_queries_that_saw_the_slot) {
  Random random(TestSeed("attention_sums/are_divided"));
  const uint32_t sizes[] = {1, 2, 3, 7, 16, 17, 33, 130};
  for (const uint32_t n_tokens : sizes) {
    for (const uint32_t n_listed : {0u, 1u, n_tokens / 2, n_tokens}) {
      const Held held(n_listed, n_tokens, random);
      SlotPositions slots;
      // The lists are the second of two.
      std::vector<int32_t> lists(n_listed, -7);
      lists.insert(lists.end(), held.listed.begin(), held.listed.end());
      slots.kept = lists.data();
      slots.n_kept = n_listed;
      slots.n_lists = 2;
      slots.tail_position = held.tail;
      const uint32_t begin = random.Below(n_tokens);
      const uint32_t n = n_tokens - begin;
      const uint32_t n_summed =
          random.Below(2) == 0 ? INT32_MAX : 1 + random.Below(held.n_seen());
      std::vector<float> sums(n);
      for (float& sum : sums) sum = random.Gaussian();
      std::vector<float> first;
      ForEachTarget([&](SimdTarget simd) {
        GuardedPages pages(n * sizeof(float));
        auto* const out = reinterpret_cast<float*>(pages.data());
        std::memcpy(out, sums.data(), n * sizeof(float));
        DivideByQueries(simd, slots, 1, begin, n, held.n_seen(), n_summed, out);
        for (uint32_t i = 0; i < n; ++i) {
          const double expected =
              sums[i] / std::min<double>(held.Queries(begin + i), n_summed);
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

// An addition rounds once, and a maximum is exact.
Test(attention_sums, get_the_maximum_of_what_follows) {
  Random random(TestSeed("attention_sums/get_the_maximum"));
  for (const uint32_t n : {1u, 3u, 16u, 33u, 130u}) {
    for (const uint32_t width : {1u, 2u, 7u, 40u}) {
      const uint32_t n_old = random.Below(n + 1);
      std::vector<float> rows(n + width - 1);
      std::vector<float> sums(n);
      for (float& row : rows) row = random.Gaussian();
      for (float& sum : sums) sum = random.Gaussian();
      rows[random.Below(n)] = std::numeric_limits<float>::quiet_NaN();
      ForEachTarget([&](SimdTarget simd) {
        GuardedPages pages(n * sizeof(float));
        GuardedPages from(rows.size() * sizeof(float));
        auto* const out = reinterpret_cast<float*>(pages.data());
        auto* const in = reinterpret_cast<float*>(from.data());
        std::memcpy(out, sums.data(), n * sizeof(float));
        std::memcpy(in, rows.data(), rows.size() * sizeof(float));
        AddForwardMax(simd, in, n, width, n_old, out);
        for (uint32_t i = 0; i < n; ++i) {
          float most = rows[i];
          for (uint32_t j = 1; j < width; ++j) {
            if (std::isnan(rows[i + j]) || rows[i + j] > most) {
              most = rows[i + j];
            }
            if (std::isnan(most)) break;
          }
          const float expected = i < n_old ? sums[i] + most : most;
          cr_assert(
              std::isnan(expected) ? std::isnan(out[i]) : out[i] == expected,
              "%s: %u of %u, width %u, %u old: %g, not %g", simd.name, i, n,
              width, n_old, static_cast<double>(out[i]),
              static_cast<double>(expected));
        }
      });
    }
  }
}

}  // namespace
}  // namespace kvevict
