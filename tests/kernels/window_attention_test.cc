// How window attention cuts its rows and its scratch. tests/capi/score_test.c has what it
// computes.
#include <criterion/criterion.h>

#include "core/kernels/window_attention.h"
#include "core/kernels/window_attention_layout.h"

namespace kvevict {
namespace {

TestSuite(window_attention);

Test(window_attention, has_scratch_that_serves_any_window) {
  for (uint32_t n_tokens : {1u, 64u, 1000u, 5000u}) {
    for (uint32_t group : {1u, 3u, 16u, 127u}) {
      for (uint32_t head_dim : {3u, 128u, 1024u}) {
        const WindowAttentionScratchSize any =
            WindowAttentionScratchOfAnyWindow(n_tokens, group, head_dim);
        for (uint32_t window = 1; window <= n_tokens;
             window += 1 + window / 7) {
          const WindowAttentionScratchSize one =
              WindowAttentionScratchBytes(n_tokens, window, group, head_dim);
          cr_assert(any.least >= one.least && any.best >= one.best,
                    "%u tokens, window %u, group %u, head_dim %u", n_tokens,
                    window, group, head_dim);
        }
      }
    }
  }
}

Test(window_attention, batches_have_every_row_once) {
  for (uint32_t head_dim : {1u, 64u, 128u, 576u, 8192u}) {
    for (uint32_t window : {1u, 32u, 63u, 64u, 65u, 256u, 5000u}) {
      for (uint32_t group : {1u, 4u, 16u, 127u}) {
        const RowBatches batches(window, group, head_dim, 1);
        const RowBatch first = batches.First();
        uint64_t n = 0;  // rows before the batch, head after head
        for (RowBatch b = first; b.head < group; b = batches.After(b)) {
          cr_assert(uint64_t{b.head} * window + b.row == n &&
                        b.row % kRowsPerSum == 0 && b.size() > 0 &&
                        b.size() <= first.size() &&
                        (b.n_heads == 1 || b.n_rows == window),
                    "head_dim %u, window %u, group %u: batch at %llu", head_dim,
                    window, group, static_cast<unsigned long long>(n));
          n += b.size();
        }
        cr_assert_eq(n, uint64_t{window} * group);
        cr_assert(first.size() <= kRowsPerSum ||
                  first.size() * (head_dim + 2 * kTileKeys) * sizeof(float) <=
                      RowBatches::kBytes);
      }
    }
  }
}

Test(window_attention, scratch_is_at_best_for_a_batch_and_at_least_for_a_tile) {
  const WindowAttentionScratchSize some =
      WindowAttentionScratchBytes(16384, 64, 4, 128);
  const size_t exps = size_t{16384} * 64 * 4 * sizeof(float);
  cr_assert(some.best >= exps && some.best < exps + exps / 16);
  // 128 heads in batches of 23 at most.
  const WindowAttentionScratchSize mla =
      WindowAttentionScratchBytes(131072, 32, 128, 576);
  cr_assert(mla.best < size_t{131072 + 8192} * 32 * 23 * sizeof(float));
  for (uint32_t window : {1u, 32u, 256u, 131072u}) {
    for (uint32_t group : {1u, 4u, 16u, 128u, 5000u}) {
      for (uint32_t head_dim : {1u, 64u, 128u, 576u, 65536u}) {
        const size_t least =
            WindowAttentionScratchBytes(131072, window, group, head_dim).least;
        cr_assert(least < (size_t{7} << 19) + 131072 * sizeof(float) +
                              size_t{672} * head_dim,
                  "window %u, group %u, head_dim %u: at least %zu bytes",
                  window, group, head_dim, least);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict
