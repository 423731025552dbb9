// Window attention gives the same bytes wherever and however its rows lie.
#include <criterion/criterion.h>

#include <vector>

#include "tests/kernels/attention_case.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

std::vector<RowLayout> LayoutsOf(DType dtype) {
  std::vector<RowLayout> layouts(11);
  layouts[0].name = "packed";
  layouts[1].name = "packed, before a page";
  layouts[1].guard = GuardedPages::Against::kBegin;
  layouts[2].name = "wide rows";
  layouts[2].row_gap_bytes = 256;
  layouts[3].name = "misaligned rows";
  layouts[3].row_gap_bytes = 1;
  layouts[4].name = "every third element";
  layouts[4].element_step = 3;
  layouts[5].name = "last row first";
  layouts[5].reversed_rows = true;
  layouts[6].name = "last element first";
  layouts[6].reversed_elements = true;
  layouts[7].name = "transposed";
  layouts[7].transposed = true;
  layouts[8].name = "paged";
  layouts[8].block_size = 16;
  layouts[9].name = "paged by single rows, misaligned";
  layouts[9].block_size = 1;
  layouts[9].row_gap_bytes = 3;
  layouts[10].name = "paged by 5 rows, reversed, spread";
  layouts[10].block_size = 5;
  layouts[10].reversed_rows = true;
  layouts[10].element_step = 2;
  layouts[10].row_gap_bytes = 7;
  for (RowLayout& layout : layouts) layout.dtype = dtype;
  return layouts;
}

TestSuite(window_attention_layout);

// This also holds across dtypes: numbers that f16 or bf16 hold give what f32 gives.
Test(window_attention_layout, does_not_change_a_byte) {
  Random random(TestSeed("window_attention_layout/does_not_change_a_byte"));
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (uint32_t head_dim : {1u, 3u, 16u, 80u, 128u}) {
      const oracle::WindowAttentionInput in =
          RandomInput(131, 6, 2, head_dim, random, dtype, dtype);
      ForEachTarget([&](SimdTarget simd) {
        const std::vector<float> expected = RunKernel(simd, in);
        for (const RowLayout& layout : LayoutsOf(dtype)) {
          cr_assert(SameBytes(RunKernel(simd, in, layout, layout), expected),
                    "%s: dtype %d, head_dim %u, %s", simd.name,
                    static_cast<int>(dtype), head_dim, layout.name);
        }
      });
    }
  }
}

Test(window_attention_layout, queries_and_keys_may_differ) {
  Random random(
      TestSeed("window_attention_layout/queries_and_keys_may_differ"));
  const oracle::WindowAttentionInput in =
      RandomInput(77, 8, 3, 48, random, DType::kBF16, DType::kF16);
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  RowLayout queries;
  queries.dtype = DType::kBF16;
  queries.block_size = 1;
  RowLayout keys;
  keys.dtype = DType::kF16;
  keys.element_step = 2;
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in, queries, keys);
    ExpectWeights(in, expected, weights, simd.name);
    cr_assert(SameBytes(weights, RunKernel(simd, in)), "%s", simd.name);
  });
}

}  // namespace
}  // namespace kvevict
