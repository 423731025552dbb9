// Rows that go are merged into rows that stay: ties, halves and keys without a direction
// on every target. tests/capi/moves_merge_test.c compares with double precision.
#include "core/kernels/merge.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

struct Head {
  std::vector<float> keys;
  std::vector<float> values;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  std::vector<int32_t> keep;

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
  const size_t n_bytes = MergeScratchBytes(n, head.key_dim, head.value_dim);
  GuardedPages scratch(n_bytes);
  std::memset(scratch.data(), 0xff, n_bytes);
  args.scratch = scratch.data();
  const RowStore value_store(head.values, head.value_dim, values);
  args.values = value_store.source();
  args.value_dim = head.value_dim;
  MergeRows(simd, args);
  return {ReadAll(args.keys, n, head.key_dim),
          ReadAll(args.values, n, head.value_dim)};
}

TestSuite(merge);

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

}  // namespace
}  // namespace kvevict
