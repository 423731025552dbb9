// Values that stay are fitted to queries: against double precision, in any layout and
// on every target.
#include "core/kernels/fit_values.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/fit.h"

namespace kvevict {
namespace {

struct Case {
  uint32_t n_tokens = 0, key_dim = 0, value_dim = 0;
  uint32_t group = 1, n_queries = 0;  // of each query head
  std::vector<float> keys, values;
  std::vector<float> queries;  // [n_queries, group, key_dim]
  std::vector<float> sinks;    // [group], or empty
  std::vector<int32_t> keep;
  std::vector<float> biases;  // [n_tokens], or empty
  bool fits_biases = false;
  float softcap = 0.0f;
  double ridge = 0.01;

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(key_dim)); }
  uint32_t n_keep() const { return static_cast<uint32_t>(keep.size()); }
};

// Half of the queries look for a key of their own; the others are diffuse.
Case Draw(Random& random, DType dtype, uint32_t n_tokens, uint32_t n_keep,
          uint32_t n_queries, uint32_t group, uint32_t key_dim,
          uint32_t value_dim) {
  Case c;
  c.n_tokens = n_tokens;
  c.key_dim = key_dim;
  c.value_dim = value_dim;
  c.group = group;
  c.n_queries = n_queries;
  c.keys = DrawKeys(random, dtype, n_tokens, key_dim);
  c.values = DrawKeys(random, dtype, n_tokens, value_dim);
  for (uint32_t i = 0; i < n_queries * group; ++i) {
    const float* const key = &c.keys[random.Below(n_tokens) * key_dim];
    const bool looks = random.Below(2) == 0;
    for (uint32_t e = 0; e < key_dim; ++e) {
      c.queries.push_back(random.Gaussian() * 0.5f + (looks ? key[e] : 0.0f));
    }
  }
  std::vector<int32_t> slots(n_tokens);
  for (uint32_t i = 0; i < n_tokens; ++i) slots[i] = static_cast<int32_t>(i);
  for (uint32_t i = 0; i < n_keep; ++i) {
    std::swap(slots[i], slots[i + random.Below(n_tokens - i)]);
  }
  c.keep.assign(slots.begin(), slots.begin() + n_keep);
  std::sort(c.keep.begin(), c.keep.end());
  return c;
}

// All values afterwards. `biases`: receives all biases, or nullptr.
std::vector<float> Fit(SimdTarget simd, const Case& c, const RowLayout& keys,
                       const RowLayout& values,
                       std::vector<float>* biases = nullptr) {
  const RowStore key_store(c.keys, c.key_dim, keys);
  const RowStore value_store(c.values, c.value_dim, values);
  FitValues fit;
  Attention& rows = fit.rows;
  rows.queries.base = reinterpret_cast<const uint8_t*>(c.queries.data());
  rows.queries.element_stride = sizeof(float);
  rows.query_head_stride = int64_t{c.key_dim} * 4;
  rows.queries.row_stride = rows.query_head_stride * c.group;
  rows.keys = key_store.source();
  rows.values = value_store.source();
  std::vector<float> bias_rows = c.biases;
  if (!bias_rows.empty()) {
    rows.biases.base = reinterpret_cast<const uint8_t*>(bias_rows.data());
    rows.biases.row_stride = sizeof(float);
  }
  fit.fits_biases = c.fits_biases;
  rows.group = c.group;
  rows.k_dim = c.key_dim;
  rows.v_dim = c.value_dim;
  rows.n_queries = c.n_queries;
  rows.n_tokens = c.n_tokens;
  rows.non_causal = true;
  rows.scale = c.scale();
  rows.softcap = c.softcap;
  if (!c.sinks.empty()) fit.sinks = c.sinks.data();
  fit.keep = c.keep.data();
  fit.n_keep = c.n_keep();
  fit.ridge = c.ridge;
  const size_t n_bytes =
      FitScratchBytes(rows, c.n_tokens, c.fits_biases).value();
  GuardedPages scratch(n_bytes);
  std::memset(scratch.data(), 0xff, n_bytes);
  fit.scratch = scratch.data();
  FitKeptValues(simd, fit);
  if (biases != nullptr) *biases = bias_rows;
  std::vector<float> after;
  for (uint32_t t = 0; t < c.n_tokens; ++t) {
    for (uint32_t e = 0; e < c.value_dim; ++e) {
      after.push_back(ElementOf(rows.values, t, e));
    }
  }
  return after;
}

struct Expected {
  std::vector<double> values, bounds;
  double left;                             // of the error of what queries read
  std::vector<double> pulls, pull_bounds;  // on fitted biases
};

// `biases`: those of all slots after the fit, or nullptr.
Expected ByOracle(const Case& c, const std::vector<float>* biases = nullptr) {
  Expected e;
  std::vector<float> fitted;
  for (size_t i = 0; i < c.keep.size() && biases != nullptr; ++i) {
    fitted.push_back((*biases)[static_cast<size_t>(c.keep[i])]);
  }
  e.values.resize(c.keep.size() * c.value_dim);
  e.bounds.resize(e.values.size());
  std::vector<float> sinks;
  for (uint32_t i = 0; i < c.n_queries && !c.sinks.empty(); ++i) {
    sinks.insert(sinks.end(), c.sinks.begin(), c.sinks.end());
  }
  const oracle_fit in = {c.queries.data(),
                         sinks.empty() ? nullptr : sinks.data(),
                         c.keys.data(),
                         c.values.data(),
                         c.n_queries * c.group,
                         c.n_tokens,
                         c.key_dim,
                         c.value_dim,
                         double{c.scale()},
                         double{c.softcap},
                         c.keep.data(),
                         c.n_keep(),
                         c.ridge,
                         c.biases.empty() ? nullptr : c.biases.data(),
                         fitted.empty() ? nullptr : fitted.data()};
  if (!fitted.empty()) {
    e.pulls.resize(fitted.size());
    e.pull_bounds.resize(fitted.size());
    oracle_fit_bias_pulls(&in, e.pulls.data(), e.pull_bounds.data());
  }
  e.left = oracle_fit_values(&in, e.values.data(), e.bounds.data());
  return e;
}

// Returns how many bounds the largest change is, so that a test can tell that it
// would have seen none.
double ExpectAsOracle(const std::string& what, DType dtype, const Case& c,
                      const Expected& e, const std::vector<float>& got) {
  size_t t = 0;
  double most = 0.0;
  for (uint32_t slot = 0; slot < c.n_tokens; ++slot) {
    const bool stays = t < c.keep.size() && c.keep[t] == int32_t(slot);
    for (uint32_t i = 0; i < c.value_dim; ++i) {
      const size_t at = size_t{slot} * c.value_dim + i;
      if (!stays) {
        cr_assert(std::memcmp(&got[at], &c.values[at], sizeof(float)) == 0,
                  "%s: slot %u changed", what.c_str(), slot);
        continue;
      }
      const double want = e.values[t * c.value_dim + i];
      const double bound =
          e.bounds[t * c.value_dim + i] + StoreError(dtype, want);
      cr_assert(std::abs(got[at] - want) <= bound,
                "%s: slot %u, element %u is %.9g, not %.9g to %.3g",
                what.c_str(), slot, i, double{got[at]}, want, bound);
      most = std::max(most, std::abs(want - c.values[at]) / bound);
    }
    t += stays;
  }
  return most;
}

TestSuite(fit_values);

// Tiles, chunks and panels are full and partial, with fewer, as many and more queries
// than kept rows.
Test(fit_values, matches_the_oracle) {
  struct Sizes {
    uint32_t n_tokens, n_keep, n_queries, group, key_dim, value_dim;
  };
  constexpr Sizes kSizes[] = {
      {2, 1, 1, 1, 1, 1},       {9, 3, 5, 1, 3, 7},
      {33, 16, 8, 2, 16, 16},   {40, 31, 9, 1, 17, 20},
      {64, 32, 16, 4, 8, 33},   {100, 33, 70, 1, 64, 32},
      {130, 65, 65, 1, 40, 24}, {150, 20, 90, 4, 64, 64},
      {170, 90, 3, 8, 80, 96},  {90, 40, 1, 2, 128, 128}};
  Random random(TestSeed("fit_values/matches_the_oracle"));
  double most = 0.0;
  uint32_t n = 0;
  for (const DType dtype : kKeyDTypes) {
    for (const Sizes& s : kSizes) {
      Case c = Draw(random, dtype, s.n_tokens, s.n_keep, s.n_queries, s.group,
                    s.key_dim, s.value_dim);
      if (n % 3 == 1) c.softcap = 3.0f;
      if (n % 4 == 2) {
        for (uint32_t g = 0; g < c.group; ++g) c.sinks.push_back(0.5f * g);
      }
      if (n % 5 == 3) c.ridge = 1.0;
      ++n;
      const Expected e = ByOracle(c);
      cr_assert(e.left < 1.0, "queries read no better: %g", e.left);
      const RowLayout keys = AnyLayout(random, dtype);
      const RowLayout values = AnyLayout(random, dtype);
      ForEachTarget([&](SimdTarget simd) {
        const std::string what =
            std::string(simd.name) + ", case " + std::to_string(n);
        most = std::max(most, ExpectAsOracle(what, dtype, c, e,
                                             Fit(simd, c, keys, values)));
      });
    }
  }
  cr_assert(most > 1000.0, "changes are at most %g bounds", most);
}

// With more kept rows than are gathered at a time, and more queries than attend
// together. Each system is solved for what the other one solves.
Test(fit_values, both_systems_have_one_solution) {
  Random random(TestSeed("fit_values/both_systems_have_one_solution"));
  Case c = Draw(random, DType::kF32, 700, 600, 299, 2, 32, 16);
  for (const uint32_t n_queries : {299u, 301u}) {
    c.n_queries = n_queries;
    c.queries.resize(size_t{299} * 2 * 32);
    // Rows of 0 see all keys alike.
    c.queries.resize(size_t{n_queries} * 2 * 32, 0.0f);
    const Expected e = ByOracle(c);
    ForEachTarget([&](SimdTarget simd) {
      (void)ExpectAsOracle(simd.name, DType::kF32, c, e,
                           Fit(simd, c, Packed(), Packed()));
    });
  }
}

// What is not a number stays where it is.
Test(fit_values, numbers_that_are_not_finite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Random random(TestSeed("fit_values/numbers_that_are_not_finite"));
  const Case c = Draw(random, DType::kF32, 60, 20, 30, 1, 16, 8);
  int32_t gone = 0;
  while (std::count(c.keep.begin(), c.keep.end(), gone) > 0) ++gone;
  ForEachTarget([&](SimdTarget simd) {
    Case with = c;
    with.keys[static_cast<size_t>(c.keep[3]) * 16] = kNan;
    cr_assert(SameBits(Fit(simd, with, Packed(), Packed()), with.values),
              "%s: a key", simd.name);
    const std::vector<float> plain = Fit(simd, c, Packed(), Packed());
    for (const float x : {kInfinity, kNan}) {
      with = c;
      with.values[static_cast<size_t>(gone) * 8 + 2] = x;
      const std::vector<float> got = Fit(simd, with, Packed(), Packed());
      for (const int32_t slot : c.keep) {
        for (size_t e = 0; e < 8; ++e) {
          const size_t at = static_cast<size_t>(slot) * 8 + e;
          const float want = e == 2 ? c.values[at] : plain[at];
          cr_assert_eq(got[at], want, "%s: slot %d, element %zu", simd.name,
                       slot, e);
        }
      }
    }
  });
}

// A value that f16 cannot hold is not written.
Test(fit_values, values_beyond_the_dtype_stay) {
  Case c;
  c.n_tokens = 2;
  c.key_dim = c.value_dim = 1;
  c.keys = {0, 0};
  c.values = {60000, 65504};
  c.queries = {1};
  c.n_queries = 1;
  c.keep = {0};
  c.ridge = 1e-6;
  // One value reads as itself: the mean of both is wanted.
  ForEachTarget([&](SimdTarget simd) {
    const DType f16 = DType::kF16;
    cr_assert_eq(Fit(simd, c, Packed(f16), Packed(f16))[0], 62752.0f);
    Case far = c;
    far.n_tokens = 3;
    far.keys = {0, 8, 8};
    far.values = {60000, 65504, 30000};
    far.queries = {0, 1};
    far.n_queries = 2;
    far.keep = {0, 1};
    // Slot 1 would have to grow to carry slot 0's share.
    far.values[0] = -60000;
    far.values[2] = 65504;
    const std::vector<float> got = Fit(simd, far, Packed(f16), Packed(f16));
    cr_assert_eq(got[1], 65504.0f, "%s: %g", simd.name, double{got[1]});
    cr_assert_neq(got[0], -60000.0f);
  });
}

Test(fit_values, nothing_changes_without_queries_or_losses) {
  Random random(TestSeed("fit_values/nothing_changes"));
  Case c = Draw(random, DType::kF32, 30, 30, 10, 1, 8, 8);
  ForEachTarget([&](SimdTarget simd) {
    cr_assert(SameBits(Fit(simd, c, Packed(), Packed()), c.values));
    Case none = c;
    none.keep.clear();
    cr_assert(SameBits(Fit(simd, none, Packed(), Packed()), c.values));
  });
}

// ---- Biases ----

// What became of the biases of a case.
struct Sides {
  uint32_t n_free = 0, n_least = 0, n_most = 0;
};

// The biases are at the minimum within their limits, where every slope is 0 or points
// beyond the limit that the bias is at. Other slots keep theirs.
void ExpectLeastSquares(const std::string& what, const Case& c,
                        const Expected& e, const std::vector<float>& biases,
                        Sides* sides) {
  size_t t = 0;
  for (uint32_t slot = 0; slot < c.n_tokens; ++slot) {
    if (t == c.keep.size() || c.keep[t] != int32_t(slot)) {
      cr_assert_eq(biases[slot], c.biases[slot], "%s: slot %u changed",
                   what.c_str(), slot);
      continue;
    }
    const double change = double{biases[slot]} - c.biases[slot];
    const double rounding = 0x1p-23 * std::abs(biases[slot]);
    cr_assert(std::abs(change) <= kMostBiasChange + rounding, "%s: %.9g",
              what.c_str(), change);
    const bool is_least = change <= rounding - kMostBiasChange;
    const bool is_most = change >= kMostBiasChange - rounding;
    const double pull = e.pulls[t], bound = e.pull_bounds[t];
    cr_assert(is_least || pull <= bound, "%s: slot %u: %.3g above %.3g",
              what.c_str(), slot, pull, bound);
    cr_assert(is_most || pull >= -bound, "%s: slot %u: %.3g below -%.3g",
              what.c_str(), slot, pull, bound);
    ++(is_least ? sides->n_least : is_most ? sides->n_most : sides->n_free);
    ++t;
  }
}

// Slots get up to `reach` above or below 0.
void AddBiases(Random& random, float reach, Case* c) {
  for (uint32_t i = 0; i < c->n_tokens; ++i) {
    c->biases.push_back(reach * random.Gaussian());
  }
}

Test(fit_values, biases_count_in_every_softmax) {
  Random random(TestSeed("fit_values/biases_count"));
  for (const uint32_t n_keep : {12u, 50u}) {
    for (const float softcap : {0.0f, 3.0f}) {
      Case c = Draw(random, DType::kF32, 80, n_keep, 13, 2, 24, 33);
      AddBiases(random, 1.5f, &c);
      c.softcap = softcap;
      const Expected e = ByOracle(c);
      ForEachTarget([&](SimdTarget simd) {
        std::vector<float> biases;
        const double most =
            ExpectAsOracle(simd.name, DType::kF32, c, e,
                           Fit(simd, c, Packed(), Packed(), &biases));
        cr_assert(most > 30.0, "changes are at most %g bounds", most);
        cr_assert(SameBits(biases, c.biases), "%s: biases changed", simd.name);
      });
    }
  }
}

// With fewer, as many and more queries than kept rows; some biases end at each limit.
Test(fit_values, fitted_biases_are_least_squares) {
  struct Sizes {
    uint32_t n_tokens, n_keep, n_queries, group, key_dim;
  };
  constexpr Sizes kSizes[] = {{2, 1, 1, 1, 1},     {9, 3, 5, 1, 3},
                              {33, 16, 8, 2, 16},  {40, 31, 9, 1, 17},
                              {90, 12, 50, 4, 16}, {200, 33, 70, 1, 64},
                              {130, 65, 16, 4, 8}, {300, 20, 90, 4, 8},
                              {170, 90, 3, 8, 12}, {90, 40, 1, 2, 128}};
  Random random(TestSeed("fit_values/fitted_biases"));
  Sides sides;
  double most_moved = 0.0;
  uint32_t n = 0;
  for (int round = 0; round < 3; ++round) {
    for (const Sizes& s : kSizes) {
      Case c = Draw(random, DType::kF32, s.n_tokens, s.n_keep, s.n_queries,
                    s.group, s.key_dim, 8);
      c.fits_biases = true;
      AddBiases(random, n % 2 == 0 ? 0.0f : 1.5f, &c);
      if (n % 3 == 1) c.softcap = 3.0f;
      if (n % 4 == 2) {
        for (uint32_t g = 0; g < c.group; ++g) c.sinks.push_back(0.5f * g);
      }
      c.ridge = n % 5 == 3 ? 1.0 : n % 5 == 4 ? 1e-3 : 0.01;
      ++n;
      const Expected start = ByOracle(c, &c.biases);
      ForEachTarget([&](SimdTarget simd) {
        const std::string what =
            std::string(simd.name) + ", case " + std::to_string(n);
        std::vector<float> biases;
        const std::vector<float> got =
            Fit(simd, c, Packed(), Packed(), &biases);
        const Expected e = ByOracle(c, &biases);
        ExpectLeastSquares(what, c, e, biases, &sides);
        (void)ExpectAsOracle(what, DType::kF32, c, e, got);
        for (size_t t = 0; t < c.keep.size(); ++t) {
          most_moved = std::max(
              most_moved, std::abs(start.pulls[t]) / start.pull_bounds[t]);
        }
      });
    }
  }
  cr_assert(most_moved > 1000.0, "pulls are at most %g bounds", most_moved);
  cr_assert(sides.n_free > 0 && sides.n_least > 0 && sides.n_most > 0,
            "%u free, %u at the least, %u at the most", sides.n_free,
            sides.n_least, sides.n_most);
}

// With a tiny ridge the steps may find no minimum; biases are never left between.
Test(fit_values, biases_stay_where_steps_find_no_minimum) {
  Random random(TestSeed("fit_values/no_minimum"));
  uint32_t n_found = 0, n_left = 0;
  for (int round = 0; round < 200; ++round) {
    Case c = Draw(random, DType::kF32, 24, 10, 8, 1, 8, 8);
    c.fits_biases = true;
    AddBiases(random, 1.0f, &c);
    c.ridge = 1e-5;
    ForEachTarget([&](SimdTarget simd) {
      std::vector<float> biases;
      (void)Fit(simd, c, Packed(), Packed(), &biases);
      if (SameBits(biases, c.biases)) {
        ++n_left;
        return;
      }
      Sides sides;
      ExpectLeastSquares(simd.name, c, ByOracle(c, &biases), biases, &sides);
      ++n_found;
    });
  }
  cr_assert(n_found > 0 && n_left > 0, "%u found, %u left", n_found, n_left);
}

Test(fit_values, biases_stay_where_weights_are_not_finite) {
  Random random(TestSeed("fit_values/biases_stay"));
  Case c = Draw(random, DType::kF32, 60, 20, 30, 1, 16, 8);
  c.fits_biases = true;
  AddBiases(random, 1.0f, &c);
  c.keys[static_cast<size_t>(c.keep[3]) * 16] =
      std::numeric_limits<float>::quiet_NaN();
  ForEachTarget([&](SimdTarget simd) {
    std::vector<float> biases;
    cr_assert(SameBits(Fit(simd, c, Packed(), Packed(), &biases), c.values));
    cr_assert(SameBits(biases, c.biases));
  });
}

}  // namespace
}  // namespace kvevict
