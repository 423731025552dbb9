// Heads whose rows alternate in memory give the bits of one head after the other.
#include <criterion/criterion.h>

#include <cstring>
#include <vector>

#include "core/kernels/key_diff.h"
#include "core/kernels/key_filter.h"
#include "core/kernels/row_norm.h"
#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

// n_tokens of n_heads, with a token's heads side by side.
struct Tokens {
  RowSource rows;  // of the first head
  uint32_t n_tokens;
  uint32_t dim;
  SideBySide heads;

  RowSource Of(uint32_t head) const {
    RowSource of_head = rows;
    of_head.base += head * heads.stride;
    return of_head;
  }
};

// Calls compute(rows, heads, first head, out) once for all heads, and once for each.
template <typename Compute>
void ExpectSameBits(const char* what, SimdTarget simd, const Tokens& tokens,
                    const Compute& compute) {
  // Nobody may write to the gap between heads.
  Tokens apart = tokens;
  apart.heads.out_stride = tokens.n_tokens + 3;
  std::vector<float> together(apart.heads.out_stride * tokens.heads.n_heads,
                              7.0f);
  std::vector<float> alone = together;
  compute(tokens.rows, apart.heads, 0, together.data());
  for (uint32_t head = 0; head < tokens.heads.n_heads; ++head) {
    compute(tokens.Of(head), SideBySide(), head,
            alone.data() + head * apart.heads.out_stride);
  }
  cr_assert(SameBits(together, alone), "%s, %s: %u heads, %u tokens, dim %u",
            what, simd.name, tokens.heads.n_heads, tokens.n_tokens, tokens.dim);
}

void CheckKernels(SimdTarget simd, const Tokens& tokens,
                  const std::vector<float>& filters) {
  const uint32_t n = tokens.n_tokens;
  ExpectSameBits(
      "norms", simd, tokens,
      [&](const RowSource& rows, const SideBySide& heads, uint32_t,
          float* out) {
        ComputeRowNorms(simd, {rows, 0, n, tokens.dim, false, out, heads});
      });
  if (n > 5) {
    ExpectSameBits(
        "norms from one on", simd, tokens,
        [&](const RowSource& rows, const SideBySide& heads, uint32_t,
            float* out) {
          ComputeRowNorms(simd, {rows, 5, n - 5, tokens.dim, true, out, heads});
        });
  }
  ExpectSameBits("filters", simd, tokens,
                 [&](const RowSource& rows, const SideBySide& heads,
                     uint32_t head, float* out) {
                   std::vector<float> scratch(
                       KeyFilterScratchFloats(heads.n_heads, tokens.dim));
                   FilterKeys(simd, {rows, 0, n, tokens.dim,
                                     filters.data() + size_t{head} * tokens.dim,
                                     out, scratch.data(), heads, tokens.dim});
                 });
  ExpectSameBits("differences", simd, tokens,
                 [&](const RowSource& rows, const SideBySide& heads, uint32_t,
                     float* out) {
                   std::vector<float> scratch(
                       KeyDiffScratchFloats(heads.n_heads, tokens.dim));
                   ComputeKeyDiffs(
                       simd, {rows, n, tokens.dim, out, scratch.data(), heads});
                 });
}

TestSuite(side_by_side);

Test(side_by_side, the_same_as_one_head_after_the_other) {
  Random random(TestSeed("side_by_side/the_same_as_one_head_after_the_other"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : {1u, 16u, 19u, 64u, 128u, 300u}) {
      const uint32_t n_heads = 1 + random.Below(9);
      const uint32_t n_tokens = 1 + random.Below(random.Below(4) ? 40 : 600);
      const std::vector<float> rows =
          DrawKeys(random, dtype, n_tokens * n_heads, dim);
      const std::vector<float> filters =
          DrawKeys(random, DType::kF32, n_heads, dim);
      for (const RowLayout& layout : EveryLayout(dtype)) {
        if (layout.block_size > 0)
          continue;  // a block would end within a token
        const RowStore store(rows, dim, layout);
        Tokens tokens{store.source(),
                      n_tokens,
                      dim,
                      {n_heads, store.source().row_stride, 0}};
        tokens.rows.row_stride *= n_heads;
        ForEachTarget(
            [&](SimdTarget simd) { CheckKernels(simd, tokens, filters); });
      }
    }
  }
}

}  // namespace
}  // namespace kvevict
