/* Evictions by keydiff block after block, against the same walk in double precision. */
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/oracle/key_scores.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

enum { kLayers = 4, kHeads = 2, kMostTokens = 400 };

static test_model* Model(const char* policy, uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = spec.max_positions = kMostTokens;
  return test_model_create(&spec, (test_random){seed});
}

/* kvpress starts with the first n_kept = int(S * (1 - r)) tokens. It takes the next 128
 * and keeps the n_kept best of these by KeyDiff, again and again. Layers may differ in
 * n_kept. */
Test(key_diff_blocks, keydiff_block_kvpress) {
  static const char* const kTexts[] = {
      "keydiff-block-kvpress", "keydiff-block-kvpress:budget=0.25",
      "keydiff-block-kvpress:budget=100,block=20",
      "keydiff-block-kvpress:budget=60,block=7,split=geometric,alpha=0.9"};
  static const uint32_t kTokens[] = {130, 256, 400, 399};
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t n = kTokens[i];
    /* Heads in which f32 may choose otherwise near a cut do not count. Keys around
     * 0 have a short mean, so more of them do not. */
    uint32_t n_told = 0;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      test_model* m = Model(kTexts[i], seed);
      test_model_append(m, n);
      uint32_t budgets[kLayers];
      EXPECT_OK(
          kvevict_policy_layer_budgets(m->policy_handle, n, budgets, kLayers));
      double scores[kLayers][kHeads][kMostTokens];
      bool is_told[kLayers][kHeads];
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (uint32_t h = 0; h < kHeads; ++h) {
          static float queries[2 * kMostTokens * 16], keys[kMostTokens * 16];
          double norms[kMostTokens], bounds[kMostTokens];
          test_model_read_rows(m, l, h, queries, keys, norms);
          is_told[l][h] =
              oracle_key_diff_blocks(keys, n, 16, budgets[l], m->policy.block,
                                     0, scores[l][h], bounds) > 0.0;
          n_told += is_told[l][h];
        }
      }
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (uint32_t h = 0; h < kHeads; ++h) {
          int32_t kept[kMostTokens];
          test_model_positions(m, l, h, kept);
          const uint32_t n_kept = test_model_stored_of(m, l, h);
          EXPECT(n_kept == budgets[l], "%s of %u: layer %u keeps %u", kTexts[i],
                 n, l, n_kept);
          for (uint32_t at = 0, t = 0; is_told[l][h] && t < n; ++t) {
            const bool is_kept = at < n_kept && kept[at] == (int32_t)t;
            at += is_kept;
            EXPECT(is_kept == (n_kept == n || scores[l][h][t] > -2.0),
                   "%s of %u: layer %u, head %u, token %u", kTexts[i], n, l, h,
                   t);
          }
        }
      }
      test_model_check(m, kTexts[i]);
      test_model_destroy(m);
    }
    EXPECT(n_told >= kLayers * kHeads, "%s: %u heads can be told", kTexts[i],
           n_told);
  }
}

/* Sinks, recent and protected tokens take places of the worst that stayed. */
Test(key_diff_blocks, keydiff_by_blocks_keeps_what_must_stay) {
  test_model* m = Model("keydiff:budget=50,block=16,sink=3,recent=5", 7);
  test_model_append(m, 200);
  const int32_t protect[] = {20, 77, 120};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 3;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      int32_t kept[kMostTokens];
      test_model_positions(m, l, h, kept);
      uint32_t n_forced = 0;
      for (uint32_t i = 0; i < 50; ++i) {
        n_forced += kept[i] < 3 || kept[i] >= 195 || kept[i] == 20 ||
                    kept[i] == 77 || kept[i] == 120;
      }
      EXPECT(test_model_stored_of(m, l, h) == 50 && n_forced == 11,
             "layer %u, head %u: %u of what must stay", l, h, n_forced);
    }
  }
  test_model_destroy(m);
}
