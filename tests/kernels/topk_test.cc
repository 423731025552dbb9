// Selection against sorting, on every target.
#include "core/kernels/topk.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr size_t kSizes[] = {1,   2,   3,   4,   5,   7,   8,    9,   15,  16,
                             17,  31,  32,  33,  63,  64,  65,   127, 128, 129,
                             255, 256, 257, 259, 511, 515, 1024, 2051};

// Copies into memory that ends at an inaccessible page.
class Guarded {
 public:
  explicit Guarded(const std::vector<uint32_t>& words)
      : pages_(words.size() * sizeof(uint32_t)) {
    std::memcpy(pages_.data(), words.data(), words.size() * sizeof(uint32_t));
  }
  uint32_t* data() { return reinterpret_cast<uint32_t*>(pages_.data()); }

 private:
  GuardedPages pages_;
};

std::vector<int32_t> SelectBySorting(const std::vector<uint32_t>& keys,
                                     size_t k, Tie tie) {
  std::vector<int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    return tie == Tie::kLower ? a < b : a > b;
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

void ExpectAsSorting(SimdTarget simd, const std::vector<uint32_t>& keys,
                     size_t k) {
  Guarded in(keys);
  for (Tie tie : {Tie::kLower, Tie::kHigher}) {
    const std::vector<int32_t> expected = SelectBySorting(keys, k, tie);
    GuardedPages out(k * sizeof(int32_t));
    SelectTopK(simd, in.data(), keys.size(), k, tie,
               reinterpret_cast<int32_t*>(out.data()));
    if (std::memcmp(out.data(), expected.data(), k * sizeof(int32_t)) != 0) {
      cr_assert_fail(
          "%s: %zu of %zu keys, ties to the %s: not what sorting says",
          simd.name, k, keys.size(), tie == Tie::kLower ? "lower" : "higher");
    }
  }
}

// Keys are spread over all bits, have few values, are close neighbours, or all equal.
std::vector<uint32_t> RandomKeys(size_t n, int kind, Random& random) {
  std::vector<uint32_t> keys(n);
  const uint32_t any = static_cast<uint32_t>(random.Next());
  for (uint32_t& key : keys) {
    const uint32_t bits = static_cast<uint32_t>(random.Next());
    if (kind == 0) key = bits;
    if (kind == 1) key = random.Below(4) * 0x40000000u;
    if (kind == 2) key = any + random.Below(5);  // may wrap around
    if (kind == 3) key = any;
    if (kind == 4) key = random.Below(3) == 0 ? kForcedKey : bits >> 21;
  }
  return keys;
}

TestSuite(topk);

Test(topk, selects_what_sorting_selects) {
  Random random(TestSeed("topk/selects_what_sorting_selects"));
  ForEachTarget([&](SimdTarget simd) {
    for (size_t n : kSizes) {
      for (int kind = 0; kind < 5; ++kind) {
        const std::vector<uint32_t> keys = RandomKeys(n, kind, random);
        for (size_t k : {size_t{0}, size_t{1}, n / 3, n / 2, n - 1, n}) {
          ExpectAsSorting(simd, keys, k);
        }
      }
    }
  });
}

std::vector<float> SpecialScores() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kMin = std::numeric_limits<float>::min();
  return {-kInfinity, -kMax, -1.0f, -kMin,      -kTiny, 0.0f,
          kTiny,      kMin,  1.0f,  1.0000001f, kMax,   kInfinity};
}

Test(topk, keys_are_ordered_as_scores) {
  Random random(TestSeed("topk/keys_are_ordered_as_scores"));
  ForEachTarget([&](SimdTarget simd) {
    for (size_t n : kSizes) {
      std::vector<float> scores = SpecialScores();  // ascending
      scores.resize(std::max(n, scores.size()));
      for (size_t i = SpecialScores().size(); i < scores.size(); ++i) {
        scores[i] = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
      }
      std::vector<uint32_t> keys(scores.size());
      ScoresToKeys(simd, scores.data(), scores.size(), keys.data());
      for (size_t i = 0; i < scores.size(); ++i) {
        cr_assert_lt(keys[i], kForcedKey);
        if (std::isnan(scores[i])) {
          if (keys[i] != kNanKey) cr_assert_fail("%s: NaN", simd.name);
          continue;
        }
        if (keys[i] <= kNanKey) cr_assert_fail("%s: %g", simd.name, scores[i]);
        for (size_t j = 0; j < i; ++j) {
          if (std::isnan(scores[j])) continue;
          if ((scores[i] < scores[j]) != (keys[i] < keys[j]) ||
              (scores[i] == scores[j]) != (keys[i] == keys[j])) {
            cr_assert_fail("%s: %g and %g", simd.name, scores[i], scores[j]);
          }
        }
      }
    }
  });
}

Test(topk, zeros_are_equal_and_nans_are_last) {
  ForEachTarget([&](SimdTarget simd) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> scores = {0.0f, -0.0f, nan, -nan, -1e30f};
    std::vector<uint32_t> keys(scores.size());
    ScoresToKeys(simd, scores.data(), scores.size(), keys.data());
    cr_expect_eq(keys[0], keys[1], "%s", simd.name);
    cr_expect_eq(keys[2], kNanKey, "%s", simd.name);
    cr_expect_eq(keys[3], kNanKey, "%s", simd.name);
    cr_expect_gt(keys[4], kNanKey, "%s", simd.name);
  });
}

Test(topk, keys_may_replace_the_scores) {
  Random random(TestSeed("topk/keys_may_replace_the_scores"));
  ForEachTarget([&](SimdTarget simd) {
    for (size_t n : kSizes) {
      std::vector<float> scores(n);
      for (float& score : scores) score = random.Gaussian();
      std::vector<uint32_t> apart(n);
      ScoresToKeys(simd, scores.data(), n, apart.data());
      GuardedPages pages(n * sizeof(float));
      std::memcpy(pages.data(), scores.data(), n * sizeof(float));
      ScoresToKeys(simd, reinterpret_cast<const float*>(pages.data()), n,
                   reinterpret_cast<uint32_t*>(pages.data()));
      cr_assert(std::memcmp(pages.data(), apart.data(), n * 4) == 0,
                "%s: %zu scores", simd.name, n);
    }
  });
}

}  // namespace
}  // namespace kvevict
