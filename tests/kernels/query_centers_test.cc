// Keys against the centers of queries, against double precision, in any layout and on
// every target.
#include "core/kernels/query_centers.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/query_centers.h"

namespace kvevict {
namespace {

constexpr uint32_t kPairs[] = {1,  2,  3,  7,  8,  15, 16,  17,
                               31, 32, 48, 64, 65, 96, 128, 256};
constexpr uint32_t kGroups[] = {1, 2, 3, 4, 5, 8, 9};

// The inputs of one KV head.
struct Case {
  uint32_t n_tokens;
  uint32_t n_sink;
  uint32_t n_pairs;
  uint32_t head_dim;  // some elements are beyond the pairs
  uint32_t group;
  uint32_t n_seen;
  bool is_interleaved;
  std::vector<float> keys;
  std::vector<float> inv_freq;
  std::vector<float> centers;

  size_t center_stride() const { return 3 * n_pairs + 2; }

  void DrawTables(Random& random) {
    inv_freq.resize(n_pairs);
    for (uint32_t f = 0; f < n_pairs; ++f) {
      inv_freq[f] = std::pow(
          10000.0f, -static_cast<float>(f) / static_cast<float>(n_pairs));
    }
    centers.resize(group * center_stride());
    for (uint32_t h = 0; h < group; ++h) {
      float* const head = centers.data() + h * center_stride();
      for (uint32_t f = 0; f < n_pairs; ++f) {
        const float re = random.Gaussian(), im = random.Gaussian();
        head[f] = re;
        head[n_pairs + f] = im;
        // Rounding may leave the mean of lengths below the length of the mean.
        head[2 * n_pairs + f] =
            std::hypot(re, im) *
            (random.Below(8) == 0
                 ? 0.999f
                 : 1.0f + static_cast<float>(random.Below(100)) / 50.0f);
      }
    }
  }

  oracle_centers input() const {
    oracle_centers in = {};
    in.keys = keys.data();
    in.n_tokens = n_tokens;
    in.head_dim = head_dim;
    in.n_sink = n_sink;
    in.n_seen = n_seen;
    in.group = group;
    in.n_pairs = n_pairs;
    in.is_interleaved = is_interleaved ? 1 : 0;
    in.inv_freq = inv_freq.data();
    in.centers = centers.data();
    in.center_stride = center_stride();
    return in;
  }
};

Case DrawCase(Random& random, DType dtype, uint32_t n_pairs,
              bool is_interleaved) {
  Case c = {};
  c.n_tokens = 1 + random.Below(24);
  c.n_sink = random.Below(3);
  c.n_pairs = n_pairs;
  c.head_dim = 2 * n_pairs + (random.Below(3) == 0 ? random.Below(20) : 0);
  c.group = kGroups[random.Below(std::size(kGroups))];
  c.n_seen = c.n_tokens + random.Below(100000);
  c.is_interleaved = is_interleaved;
  c.keys = DrawKeys(random, dtype, c.n_tokens, c.head_dim);
  c.DrawTables(random);
  return c;
}

// [group, n_tokens].
std::vector<float> Score(SimdTarget simd, const Case& c,
                         const RowLayout& layout) {
  const RowStore store(c.keys, c.head_dim, layout);
  std::vector<Complex> turns(c.n_pairs);
  oracle_query_turns(c.inv_freq.data(), c.n_pairs, c.n_seen, &turns[0].re);
  const size_t center_bytes =
      ((c.group - 1) * c.center_stride() + 3 * c.n_pairs) * sizeof(float);
  GuardedPages given(center_bytes);
  std::memcpy(given.data(), c.centers.data(), center_bytes);
  const size_t scratch_bytes =
      QueryCentersScratchBytes(c.n_pairs, c.group).value();
  GuardedPages scratch(scratch_bytes);
  std::memset(scratch.data(), 0xff, scratch_bytes);
  GuardedPages out(size_t{c.group} * c.n_tokens * sizeof(float));
  auto* const scores = reinterpret_cast<float*>(out.data());
  QueryCenters args;
  args.keys = store.source();
  args.n_tokens = c.n_tokens;
  args.n_sink = c.n_sink;
  args.group = c.group;
  args.n_pairs = c.n_pairs;
  args.is_interleaved = c.is_interleaved;
  args.turns = turns.data();
  args.centers = reinterpret_cast<const float*>(given.data());
  args.center_stride = c.center_stride();
  args.out = scores;
  args.out_stride = c.n_tokens;
  args.scratch = scratch.data();
  ScoreByCenters(simd, args);
  return std::vector<float>(scores, scores + size_t{c.group} * c.n_tokens);
}

void ExpectOracle(const Case& c, const std::vector<float>& scores,
                  const char* target) {
  std::vector<double> expected(scores.size()), bounds(scores.size());
  const oracle_centers in = c.input();
  oracle_query_centers(&in, nullptr, expected.data(), bounds.data());
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(scores[i])) continue;
    cr_assert(std::abs(scores[i] - expected[i]) <= bounds[i],
              "%s, %u pairs of %u, %s, group %u: score %zu of %u tokens is "
              "%.9g, expected %.9g to %.3g",
              target, c.n_pairs, c.head_dim,
              c.is_interleaved ? "interleaved" : "half", c.group, i, c.n_tokens,
              scores[i], expected[i], bounds[i]);
  }
}

TestSuite(query_centers);

Test(query_centers, matches_the_definition) {
  Random random(TestSeed("query_centers/matches_the_definition"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t n_pairs : kPairs) {
      for (bool is_interleaved : {false, true}) {
        Case c = DrawCase(random, dtype, n_pairs, is_interleaved);
        // Such keys score NaN, and change no other score.
        constexpr float kOdd[] = {std::numeric_limits<float>::quiet_NaN(),
                                  std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity()};
        for (uint32_t i = 0; random.Below(4) == 0 && i < c.n_tokens; i += 2) {
          c.keys[i * c.head_dim + random.Below(2 * n_pairs)] =
              kOdd[random.Below(3)];
        }
        const RowLayout layout = AnyLayout(random, dtype);
        ForEachTarget([&](SimdTarget simd) {
          ExpectOracle(c, Score(simd, c, layout), simd.name);
        });
      }
    }
  }
}

// The rows are longer than one piece of a sum, and far from 0.
Test(query_centers, long_rows_keep_their_scale) {
  Random random(TestSeed("query_centers/long_rows_keep_their_scale"));
  Case c = {};
  c.n_tokens = 1500;
  c.n_sink = 4;
  c.n_pairs = 16;
  c.head_dim = 32;
  c.group = 1;
  c.n_seen = 70000;
  c.keys = DrawKeys(random, DType::kF32, c.n_tokens, c.head_dim);
  for (uint32_t t = 0; t < c.n_tokens; ++t) c.keys[t * c.head_dim] += 30.0f;
  c.DrawTables(random);
  ForEachTarget([&](SimdTarget simd) {
    ExpectOracle(c, Score(simd, c, Packed()), simd.name);
  });
}

Test(query_centers, equal_keys_score_alike) {
  Random random(TestSeed("query_centers/equal_keys"));
  Case c = DrawCase(random, DType::kF32, 24, true);
  c.n_tokens = 37;
  c.n_sink = 0;
  c.keys = DrawKeys(random, DType::kF32, 1, c.head_dim);
  const std::vector<float> key = c.keys;
  while (c.keys.size() < c.n_tokens * key.size()) {
    c.keys.insert(c.keys.end(), key.begin(), key.end());
  }
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> scores = Score(simd, c, Packed());
    for (size_t i = 0; i < scores.size(); ++i) {
      cr_assert_eq(scores[i], scores[i / c.n_tokens * c.n_tokens], "%s: %zu",
                   simd.name, i);
    }
  });
}

}  // namespace
}  // namespace kvevict
