/* Published policies that are tables of budgets per head, as docs/policies.md
 * writes them. Keep sets are held against the published rules. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/oracle/head_tables.h"
#include "tests/oracle/select.h"

enum { kLayers = 4, kQHeads = 4, kHeads = 2, kAll = kLayers * kHeads };

static test_model* Model(const char* policy, const uint32_t* budgets) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = 300;
  spec.max_positions = 400;
  spec.head_budgets = budgets;
  return test_model_create(&spec, (test_random){17});
}

/* The head holds n tokens, of the positions that keeps[] says. */
static void ExpectHeld(const test_model* m, uint32_t i, const uint8_t* keeps,
                       const char* what) {
  const uint32_t n = test_model_stored_of(m, i / kHeads, i % kHeads);
  int32_t* positions = malloc((n + 1) * sizeof *positions);
  test_model_positions(m, i / kHeads, i % kHeads, positions);
  uint32_t at = 0;
  for (uint32_t p = 0; p < m->n_seen; ++p) {
    if (!keeps[p]) continue;
    EXPECT(at < n && positions[at] == (int32_t)p,
           "%s: layer %u, head %u lost token %u", what, i / kHeads, i % kHeads,
           p);
    ++at;
  }
  EXPECT(at == n, "%s: layer %u, head %u holds %u tokens, not %u", what,
         i / kHeads, i % kHeads, n, at);
  free(positions);
}

/* Streaming heads keep sinks and recent tokens, the others everything. */
Test(head_tables, duo_attention) {
  enum { kSink = 12, kRecent = 25 };
  const double alpha[kAll] = {0.9, -0.1, 0.2, 1.7, 0.5, 0.5, 0.0, 1.0};
  const double ratios[] = {0.0, 0.25, 0.5, 0.55, 1.0};
  for (size_t r = 0; r < sizeof ratios / sizeof ratios[0]; ++r) {
    uint8_t streams[kAll];
    oracle_duo_heads(alpha, kAll, ratios[r], streams);
    uint32_t budgets[kAll];
    for (uint32_t i = 0; i < kAll; ++i) {
      budgets[i] = streams[i] ? kSink + kRecent : UINT32_MAX;
    }
    test_model* m = Model("streaming-llm:sink=12,recent=25", budgets);
    for (int turn = 0; turn < 3; ++turn) {
      test_model_step(m, turn == 0 ? 30 : 60);
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      for (uint32_t i = 0; i < kAll; ++i) {
        uint8_t keeps[400];
        for (uint32_t p = 0; p < m->n_seen; ++p) {
          keeps[p] = !streams[i] || p < kSink || p + kRecent >= m->n_seen;
        }
        ExpectHeld(m, i, keeps, "duo");
      }
    }
    test_model_check(m, "duo");
    test_model_destroy(m);
  }
}

/* Keeps the window and as many of SnapKV's best scores as a head is worth. */
Test(head_tables, headkv) {
  enum { kWindow = 8, kCapacity = 40, kTokens = 200 };
  double importance[kLayers * kQHeads];
  for (int i = 0; i < kLayers * kQHeads; ++i) importance[i] = i * 7 % 11 + 0.5;
  uint32_t budgets[kAll];
  oracle_headkv_budgets(importance, kLayers, kQHeads, kHeads, kCapacity,
                        kWindow, budgets);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < kAll; ++i) sum += budgets[i];
  /* The capacity counts the window, a head's worth does not. */
  cr_expect(fabs((double)sum / kAll - kCapacity - kWindow) < 1.0);
  test_model* m = Model("snapkv:sink=0,window=8,pool=max7,rows=sum", budgets);
  test_model_step(m, kTokens);
  double scores[kAll][kTokens];
  for (uint32_t i = 0; i < kAll; ++i) {
    test_model_oracle_scores_of(m, i / kHeads, i % kHeads, scores[i]);
  }
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  uint8_t forced[kTokens] = {0};
  memset(forced + kTokens - kWindow, 1, kWindow);
  for (uint32_t i = 0; i < kAll; ++i) {
    int32_t kept[kTokens];
    const uint32_t n = test_model_stored_of(m, i / kHeads, i % kHeads);
    EXPECT(n == budgets[i], "head %u holds %u, not %u", i, n, budgets[i]);
    test_model_positions(m, i / kHeads, i % kHeads, kept);
    EXPECT(oracle_selection_is_right(scores[i], kTokens, kept, n, forced, 1e-4),
           "head %u keeps others than the best", i);
  }
  test_model_check(m, "headkv");
  test_model_destroy(m);
}

/* Keeps four sinks, the last token, and the head's best scores by a stable sort. */
Test(head_tables, lu_kv) {
  enum { kTokens = 101 };
  test_random random = test_random_start("head_tables lu_kv");
  for (int turn = 0; turn < 20; ++turn) {
    double prune[kAll];
    for (uint32_t i = 0; i < kAll; ++i) {
      prune[i] = test_random_below(&random, 95) / 100.0;
    }
    uint32_t budgets[kAll];
    oracle_lukv_budgets(prune, kAll, kTokens, budgets);
    static float scores[kLayers][kHeads][kTokens];
    for (uint32_t i = 0; i < kAll; ++i) {
      for (uint32_t t = 0; t < kTokens; ++t) {
        scores[i / kHeads][i % kHeads][t] =
            (float)test_random_below(&random, 9);
      }
    }
    test_model* m = Model("custom:sink=4,recent=1", budgets);
    test_model_step(m, kTokens);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_give_scores(&options, &inputs, kLayers, &scores[0][0][0],
                     kHeads * kTokens, kTokens);
    EXPECT_OK(test_model_evict(m, &options, NULL));
    uint8_t forced[kTokens] = {1, 1, 1, 1};
    forced[kTokens - 1] = 1;
    for (uint32_t i = 0; i < kAll; ++i) {
      int32_t expected[kTokens];
      uint8_t keeps[kTokens] = {0};
      oracle_select(scores[i / kHeads][i % kHeads], kTokens, budgets[i], forced,
                    KVEVICT_TIE_LOWER_POSITION, expected);
      for (uint32_t k = 0; k < budgets[i]; ++k) keeps[expected[k]] = 1;
      ExpectHeld(m, i, keeps, "lu-kv");
    }
    test_model_check(m, "lu-kv");
    test_model_destroy(m);
  }
}
