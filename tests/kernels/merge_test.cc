// Rows that go are merged into rows that stay: against double precision, in any
// layout and on every target.
#include "core/kernels/merge.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/merge.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr MergeRule kRules[] = {MergeRule::kValues, MergeRule::kPivot,
                                MergeRule::kWeighted};
constexpr kvevict_merge kNames[] = {KVEVICT_MERGE_VALUES, KVEVICT_MERGE_PIVOT,
                                    KVEVICT_MERGE_WEIGHTED};

struct Head {
  std::vector<float> keys;
  std::vector<float> values;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  std::vector<int32_t> keep;
  float threshold = 0;
  double fraction = 1;

  uint32_t n() const { return static_cast<uint32_t>(keys.size() / key_dim); }
};

struct Rows {
  std::vector<float> keys;
  std::vector<float> values;
};

std::vector<float> ReadAll(const RowSource& rows, uint32_t n, uint32_t dim) {
  std::vector<float> all;
  for (uint32_t r = 0; r < n; ++r) {
    for (uint32_t i = 0; i < dim; ++i) all.push_back(ElementOf(rows, r, i));
  }
  return all;
}

// All rows afterwards.
Rows Merge(SimdTarget simd, const Head& head, MergeRule rule,
           const RowLayout& keys, const RowLayout& values) {
  const uint32_t n = head.n();
  const RowStore key_store(head.keys, head.key_dim, keys);
  MergeRowsArgs args;
  args.keys = key_store.source();
  args.key_dim = head.key_dim;
  args.n_tokens = n;
  args.keep = head.keep.data();
  args.n_keep = static_cast<uint32_t>(head.keep.size());
  args.rule = rule;
  args.threshold = head.threshold;
  args.quantile = static_cast<float>(1.0 - head.fraction);
  const size_t n_bytes = MergeScratchBytes(n, head.key_dim, head.value_dim);
  GuardedPages scratch(n_bytes);
  std::memset(scratch.data(), 0xff, n_bytes);
  args.scratch = scratch.data();
  if (head.value_dim == 0) {
    MergeRows(simd, args);
    return {ReadAll(args.keys, n, head.key_dim), {}};
  }
  const RowStore value_store(head.values, head.value_dim, values);
  args.values = value_store.source();
  args.value_dim = head.value_dim;
  MergeRows(simd, args);
  return {ReadAll(args.keys, n, head.key_dim),
          ReadAll(args.values, n, head.value_dim)};
}

Head DrawHead(Random& random, DType dtype, uint32_t n, uint32_t key_dim,
              uint32_t value_dim) {
  Head head;
  head.key_dim = key_dim;
  head.value_dim = value_dim;
  head.keys = DrawKeys(random, dtype, n, key_dim);
  if (value_dim > 0) head.values = DrawKeys(random, dtype, n, value_dim);
  const uint32_t n_in = 1 + random.Below(3);
  for (uint32_t t = 0; t < n; ++t) {
    if (random.Below(4) < n_in) head.keep.push_back(static_cast<int32_t>(t));
  }
  return head;
}

struct Expected {
  std::vector<double> keys, values, key_bounds, value_bounds;
  std::vector<uint8_t> changes;
  double gap = 0;
};

Expected ByOracle(const Head& head, kvevict_merge rule) {
  Expected e;
  const size_t n = head.keep.size();
  e.keys.resize(n * head.key_dim);
  e.key_bounds.resize(n * head.key_dim);
  e.values.resize(n * head.value_dim);
  e.value_bounds.resize(n * head.value_dim);
  e.changes.resize(n);
  const oracle_merge_rows rows = {
      head.keys.data(),
      head.value_dim == 0 ? nullptr : head.values.data(),
      head.n(),
      head.key_dim,
      head.value_dim,
      head.keep.data(),
      static_cast<uint32_t>(n)};
  oracle_merged merged = {e.keys.data(), e.values.data(), e.key_bounds.data(),
                          e.value_bounds.data(), e.changes.data()};
  e.gap =
      oracle_merge(&rows, rule, double{head.threshold}, head.fraction, &merged);
  return e;
}

void ExpectRows(const char* what, DType dtype, const Head& head, uint32_t dim,
                const std::vector<float>& before,
                const std::vector<double>& want,
                const std::vector<double>& bounds,
                const std::vector<uint8_t>& changes,
                const std::vector<float>& got) {
  size_t t = 0;
  for (uint32_t slot = 0; slot < head.n(); ++slot) {
    const bool stays =
        t < head.keep.size() && head.keep[t] == static_cast<int32_t>(slot);
    for (uint32_t i = 0; i < dim; ++i) {
      const size_t at = size_t{slot} * dim + i;
      if (!stays || changes[t] == 0) {
        cr_assert(std::memcmp(&got[at], &before[at], sizeof(float)) == 0,
                  "%s: slot %u changed", what, slot);
        continue;
      }
      const double x = want[t * dim + i];
      const double most = bounds[t * dim + i] + StoreError(dtype, x);
      cr_assert(std::abs(double{got[at]} - x) <= most * (1 + 1e-6),
                "%s: slot %u, element %u is %.9g, not %.9g to %.3g", what, slot,
                i, got[at], x, most);
    }
    t += stays;
  }
}

void ExpectAsOracle(const char* what, DType dtype, const Head& head,
                    kvevict_merge rule, const Expected& e, const Rows& got) {
  ExpectRows(what, dtype, head, head.key_dim, head.keys, e.keys, e.key_bounds,
             e.changes, got.keys);
  ExpectRows(what, dtype, head, head.value_dim, head.values, e.values,
             e.value_bounds, e.changes, got.values);
  if (rule != KVEVICT_MERGE_VALUES) return;
  cr_assert(SameBits(got.keys, head.keys), "%s: keys changed", what);
}

TestSuite(merge);

// Blocks of rows and panels of keys are full and partial, with every rule, dtype and row
// size.
Test(merge, matches_the_oracle) {
  constexpr uint32_t kTokens[] = {1,  2,  3,  5,   8,   15,  16,  17, 31,
                                  32, 33, 65, 191, 193, 256, 400, 601};
  constexpr double kFractions[] = {1.0, 0.75, 0.5, 0.3};
  Random random(TestSeed("merge/matches_the_oracle"));
  uint32_t n_compared = 0, n_changed = 0;
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      for (size_t r = 0; r < std::size(kRules); ++r) {
        uint32_t n = kTokens[random.Below(std::size(kTokens))];
        if (dim > 256) n = std::min(n, 65u);
        const uint32_t value_dim =
            random.Below(5) == 0 && r > 0 ? 0 : 1 + random.Below(dim + 20);
        Head head = DrawHead(random, dtype, n, dim, value_dim);
        if (random.Below(2) == 0) head.threshold = 0.25f;
        head.fraction = kFractions[random.Below(4)];
        const Expected e = ByOracle(head, kNames[r]);
        // All keys of one dimension are alike, or opposite.
        if (e.gap < 0) continue;
        ++n_compared;
        for (const uint8_t change : e.changes) n_changed += change;
        const RowLayout keys = AnyLayout(random, dtype);
        const RowLayout values = AnyLayout(random, dtype);
        ForEachTarget([&](SimdTarget simd) {
          char what[96];
          std::snprintf(what, sizeof(what), "%s, dtype %d, dim %u, rule %zu",
                        simd.name, static_cast<int>(dtype), dim, r);
          ExpectAsOracle(what, dtype, head, kNames[r], e,
                         Merge(simd, head, kRules[r], keys, values));
        });
      }
    }
  }
  cr_assert(n_compared > 120 && n_changed > 1000, "%u heads, %u rows",
            n_compared, n_changed);
}

// By hand: slots 1 and 3 stay, 0 and 2 go. Slot 0 is along 1, and 2 is 0.6 along 1.
Head ByHand() {
  Head head;
  head.key_dim = 2;
  head.value_dim = 1;
  head.keys = {2, 0, 1, 0, 0.6f, 0.8f, -1, 0};
  head.values = {3, 5, 1, 7};
  head.keep = {1, 3};
  return head;
}

void ExpectNear(const char* what, double got, double want) {
  cr_assert(std::abs(got - want) < 1e-6 * (1 + std::abs(want)),
            "%s: %.9g, not %.9g", what, got, want);
}

Test(merge, is_what_the_rules_say) {
  const Head head = ByHand();
  ForEachTarget([&](SimdTarget simd) {
    const auto merged = [&](MergeRule rule) {
      return Merge(simd, head, rule, Packed(), Packed());
    };
    const double w0 = 3.0 / 8, w2 = 0.6 / 6;
    ExpectNear("values", merged(MergeRule::kValues).values[1],
               (5 + w0 * 3 + w2 * 1) / (1 + w0 + w2));
    const Rows pivot = merged(MergeRule::kPivot);
    ExpectNear("pivot value", pivot.values[1], (5 + 4.0 + 3.0) / 3);
    ExpectNear("pivot key", pivot.keys[2], (1 + 1.5 + 0.8) / 3);
    ExpectNear("pivot key", pivot.keys[3], 0.4 / 3);
    const Rows weighted = merged(MergeRule::kWeighted);
    ExpectNear("weighted value", weighted.values[1],
               (5 + 1.0 * 3 + 0.8 * 1) / 2.8);
    ExpectNear("weighted key", weighted.keys[2], (1 + 2 + 0.8 * 0.6) / 2.8);
    for (const MergeRule rule : kRules) {
      const Rows rows = merged(rule);
      cr_assert(rows.values[3] == 7 && rows.keys[6] == -1, "%s", simd.name);
      cr_assert(rows.values[0] == 3 && rows.values[2] == 1, "%s", simd.name);
    }
  });
}

// For threshold and fraction, 0 has similarity 1, and 2 has 0.6.
Test(merge, only_the_similar_merge) {
  ForEachTarget([&](SimdTarget simd) {
    const auto value = [&](float threshold, double fraction) {
      Head head = ByHand();
      head.threshold = threshold;
      head.fraction = fraction;
      return Merge(simd, head, MergeRule::kValues, Packed(), Packed())
          .values[1];
    };
    const double w0 = 3.0 / 8, w2 = 0.6 / 6;
    const double both = (5 + w0 * 3 + w2) / (1 + w0 + w2);
    const double one = (5 + w0 * 3) / (1 + w0);
    ExpectNear("at the threshold", value(0.5f, 1.0), both);
    ExpectNear("over the threshold", value(0.7f, 1.0), one);
    ExpectNear("half", value(0.0f, 0.5), one);
    ExpectNear("nearly all", value(0.0f, 0.999), one);
    // The quantile lies between -infinity and 1, so only the threshold decides.
    ExpectNear("of one that reaches it", value(0.7f, 0.5), one);
    ExpectNear("of none", value(0.0f, 1e-9), one);
  });
}

// The lowest slot of equal kept keys gets it, wherever panels end.
Test(merge, equal_similarities_go_to_the_lowest_slot) {
  ForEachTarget([&](SimdTarget simd) {
    for (uint32_t first = 0; first < 70; ++first) {
      Head head;
      head.key_dim = head.value_dim = 1;
      for (uint32_t t = 0; t < 80; ++t) {
        head.keys.push_back(t < first ? -1.0f : 1.0f);
        head.values.push_back(1);
        if (t < 79) head.keep.push_back(static_cast<int32_t>(t));
      }
      head.values[79] = 4;
      const Rows rows =
          Merge(simd, head, MergeRule::kPivot, Packed(), Packed());
      for (uint32_t t = 0; t < 79; ++t) {
        cr_assert(rows.values[t] == (t == first ? 1.75f : 1.0f),
                  "%s: slot %u of %u is %g", simd.name, t, first,
                  rows.values[t]);
      }
    }
  });
}

Test(merge, rows_that_are_not_finite_take_no_part) {
  Random random(TestSeed("merge/rows_that_are_not_finite_take_no_part"));
  constexpr uint32_t kDim = 20, kTokens = 60;
  const Head good = DrawHead(random, DType::kF32, kTokens, kDim, kDim);
  for (const float bad : {kNan, kInfinity, -kInfinity, 1e30f}) {
    for (int in_values = 0; in_values < 2; ++in_values) {
      Head head = good;
      std::vector<float>& rows = in_values == 1 ? head.values : head.keys;
      for (uint32_t t : {3u, 17u, 30u, 31u, 44u}) rows[t * kDim + t % 7] = bad;
      for (size_t r = 0; r < std::size(kRules); ++r) {
        head.fraction = r == 0 ? 0.5 : 1.0;
        const Expected e = ByOracle(head, kNames[r]);
        if (e.gap < 0) continue;
        ForEachTarget([&](SimdTarget simd) {
          ExpectAsOracle(simd.name, DType::kF32, head, kNames[r], e,
                         Merge(simd, head, kRules[r], Packed(), Packed()));
        });
      }
    }
  }
}

// Keys of norm 0 have similarity 0 with any key, so the first slot that stays gets them.
Test(merge, of_keys_without_a_direction) {
  Head head;
  head.key_dim = head.value_dim = 1;
  head.keys = {0, 5, 0, 3};
  head.values = {1, 1, 1, 3};
  head.keep = {0, 1};
  ForEachTarget([&](SimdTarget simd) {
    const Rows weighted =
        Merge(simd, head, MergeRule::kWeighted, Packed(), Packed());
    // Slot 2 merges by half into slot 0, and slot 3 into slot 1.
    cr_assert(weighted.values[0] == 1 && weighted.keys[1] == 4 &&
                  weighted.values[1] == 2,
              "%s: %g, %g", simd.name, weighted.values[0], weighted.values[1]);
    const Rows values =
        Merge(simd, head, MergeRule::kValues, Packed(), Packed());
    cr_assert(values.values[0] == 1, "%s", simd.name);
  });
}

// A mean half way between two numbers of a dtype rounds to the even one.
Test(merge, halves_are_rounded_to_even) {
  ForEachTarget([&](SimdTarget simd) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const float ulp = dtype == DType::kF16 ? 0x1p-10f : 0x1p-7f;
      for (uint32_t i = 0; i < 8; ++i) {
        Head head;
        head.key_dim = head.value_dim = 1;
        head.keys = {1, 1};
        // The pivot's mean: three parts of the first, one of the second.
        head.values = {1 + static_cast<float>(i) * ulp,
                       1 + static_cast<float>(i + 2) * ulp};
        head.keep = {0};
        const float half = 1 + (static_cast<float>(i) + 0.5f) * ulp;
        const float even = i % 2 == 0 ? head.values[0] : head.values[0] + ulp;
        const float got =
            Merge(simd, head, MergeRule::kPivot, Packed(dtype), Packed(dtype))
                .values[0];
        cr_assert(got == even, "%s, dtype %d: %.9g becomes %.9g, not %.9g",
                  simd.name, static_cast<int>(dtype), half, got, even);
      }
    }
  });
}

Test(merge, nothing_happens_where_all_or_none_stay) {
  Random random(TestSeed("merge/nothing_happens"));
  Head head = DrawHead(random, DType::kF32, 40, 9, 9);
  for (int all = 0; all < 2; ++all) {
    head.keep.clear();
    for (int t = 0; all == 1 && t < 40; ++t) head.keep.push_back(t);
    ForEachTarget([&](SimdTarget simd) {
      for (const MergeRule rule : kRules) {
        const Rows rows = Merge(simd, head, rule, Packed(), Packed());
        cr_assert(SameBits(rows.keys, head.keys) &&
                      SameBits(rows.values, head.values),
                  "%s", simd.name);
      }
    });
  }
}

}  // namespace
}  // namespace kvevict
