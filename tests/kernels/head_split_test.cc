// How many keys lists keep, against sorting all of them, on every target.
#include "core/kernels/head_split.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/backend.h"
#include "core/kernels/topk.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/head_split.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The lists of a layer, end to end, and what must stay of each.
struct Layer {
  uint32_t n_lists;
  uint32_t most;
  std::vector<uint32_t> tokens;
  std::vector<float> scores;
  std::vector<uint8_t> forced;

  std::vector<oracle_head> Heads() const {
    std::vector<oracle_head> heads;
    for (uint32_t i = 0; i < n_lists; ++i) {
      heads.push_back(
          {&scores[size_t{i} * most], &forced[size_t{i} * most], tokens[i]});
    }
    return heads;
  }
};

// Lists have unequal lengths. Few different scores make ties within and between lists.
Layer RandomLayer(uint32_t n_lists, uint32_t most, uint32_t n_ends, int kind,
                  Random& random) {
  constexpr float kSpecials[] = {kNan, kInfinity, -kInfinity, 0.0f, -0.0f};
  Layer layer = {n_lists, most, {}, {}, {}};
  for (uint32_t list = 0; list < n_lists; ++list) {
    const bool is_short = random.Below(3) == 0;
    const uint32_t n = is_short ? random.Below(most + 1) : most;
    const float scale = 1.0f + random.Below(3);
    layer.tokens.push_back(n);
    for (uint32_t i = 0; i < most; ++i) {
      float score = scale * random.Gaussian();
      if (kind == 1) score = static_cast<float>(random.Below(4));
      if (kind == 2) score = 2.5f;
      if (kind == 3) score = kSpecials[random.Below(5)];
      if (i >= n) score = kInfinity;  // beyond the list
      layer.scores.push_back(score);
      const bool at_end = i < n_ends || i + n_ends >= n;
      layer.forced.push_back(i < n && at_end);
    }
  }
  return layer;
}

// Counts as the CPU's selection does.
std::vector<uint32_t> Count(SimdTarget simd, const Layer& layer,
                            const HeadSplit& heads, uint32_t budget,
                            uint32_t n_asked) {
  std::vector<uint32_t> keys(layer.scores.size());
  ScoresToKeys(simd, layer.scores.data(), keys.size(), keys.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (layer.forced[i]) keys[i] = kForcedKey;
  }
  std::vector<uint32_t> counts(layer.n_lists, 77);
  std::vector<uint32_t> scratch(3 * layer.n_lists);
  const HeadContest contest = {keys.data(),
                               {layer.most, layer.tokens.data()},
                               layer.n_lists,
                               budget,
                               uint64_t{layer.n_lists} * budget,
                               layer.most,
                               counts.data(),
                               scratch.data(),
                               3};
  Forced forced;
  forced.n_recent = n_asked;
  const uint32_t n_own = heads.OwnOf(budget, forced);
  if (heads.kind == HeadRule::kAdaptive) {
    CountWinners(simd, contest, n_own);
  } else if (heads.kind == HeadRule::kAdaptiveBlend) {
    BlendWinners(simd, contest, n_own, heads.won_part());
  } else {
    CountPassing(simd, contest, static_cast<float>(heads.threshold));
  }
  return counts;
}

void ExpectAsOracle(SimdTarget simd, const Layer& layer, uint32_t budget,
                    uint32_t n_asked, Random& random) {
  constexpr double kFloors[] = {0.0, 0.05, 0.2, 0.5, 1.0};
  for (int32_t kind = 1; kind <= 3; ++kind) {
    HeadSplit heads;
    heads.kind = static_cast<HeadRule>(kind);
    heads.floor = kFloors[random.Below(5)];
    heads.threshold = 0.25 * random.Below(10) - 1.0;
    oracle_policy policy{};
    policy.heads = kind;
    policy.floor = heads.floor;
    policy.threshold = heads.threshold;
    std::vector<uint32_t> expected(layer.n_lists);
    const std::vector<oracle_head> of = layer.Heads();
    oracle_head_counts(&policy, of.data(), layer.n_lists, budget, n_asked,
                       expected.data());
    const std::vector<uint32_t> counts =
        Count(simd, layer, heads, budget, n_asked);
    for (uint32_t i = 0; i < layer.n_lists; ++i) {
      cr_assert_eq(counts[i], expected[i],
                   "%s, split %d, floor %g, budget %u: list %u of %u keeps "
                   "%u of %u, not %u",
                   simd.name, kind, heads.floor, budget, i, layer.n_lists,
                   counts[i], layer.tokens[i], expected[i]);
    }
  }
}

TestSuite(head_split);

Test(head_split, counts_as_sorting_all_of_them) {
  Random random(TestSeed("head_split/counts_as_sorting_all_of_them"));
  ForEachTarget([&](SimdTarget simd) {
    for (uint32_t most : {1u, 2u, 7u, 33u, 129u, 700u}) {
      for (uint32_t n_lists : {1u, 2u, 3u, 8u, 33u}) {
        for (int kind = 0; kind < 4; ++kind) {
          const uint32_t n_ends = random.Below(3);
          const Layer layer = RandomLayer(n_lists, most, n_ends, kind, random);
          const uint32_t n_asked = 2 * n_ends;
          for (uint32_t budget : {1u, most / 3, most / 2, most}) {
            if (budget < std::max(1u, n_asked)) continue;
            ExpectAsOracle(simd, layer, budget, n_asked, random);
          }
        }
      }
    }
  });
}

HeadSplit Adaptive(double floor) {
  HeadSplit heads;
  heads.kind = HeadRule::kAdaptive;
  heads.floor = floor;
  return heads;
}

// Equal scores share equally, whatever the floor.
Test(head_split, lists_of_equal_scores_keep_the_same) {
  Random random(1);
  ForEachTarget([&](SimdTarget simd) {
    Layer layer = RandomLayer(5, 64, 0, 2, random);
    std::fill(layer.tokens.begin(), layer.tokens.end(), 64);
    for (float score : {2.5f, 0.0f, kNan, -kInfinity}) {
      std::fill(layer.scores.begin(), layer.scores.end(), score);
      for (double floor : {0.0, 0.2, 1.0}) {
        for (uint32_t n : Count(simd, layer, Adaptive(floor), 20, 0)) {
          cr_assert_eq(n, 20, "%s, floor %g, score %g: %u", simd.name, floor,
                       score, n);
        }
      }
    }
  });
}

Test(head_split, counts_keys_that_are_larger) {
  Random random(TestSeed("head_split/counts_keys_that_are_larger"));
  ForEachTarget([&](SimdTarget simd) {
    for (size_t n : {0, 1, 3, 4, 5, 16, 17, 63, 64, 65, 1000}) {
      std::vector<uint32_t> keys(n);
      for (uint32_t& key : keys) key = random.Below(5) * 0x33333333u;
      for (uint32_t cut : {0u, 0x33333333u, 0x33333334u, kForcedKey}) {
        const auto expected = static_cast<uint32_t>(std::count_if(
            keys.begin(), keys.end(), [&](uint32_t key) { return key > cut; }));
        cr_assert_eq(CountGreater(simd, keys.data(), n, cut), expected,
                     "%s: %zu keys over %x", simd.name, n, cut);
      }
    }
  });
}

}  // namespace
}  // namespace kvevict
