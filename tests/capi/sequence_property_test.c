/* Random models are evicted again and again and compared with the oracle. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

enum { kMaxTokens = 256 };

static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                       KVEVICT_DTYPE_BF16};

static test_model_spec RandomSpec(test_random* random, const char* policy) {
  static const uint32_t kGroups[] = {1, 3, 4, 8};
  test_model_spec spec = {.policy = policy};
  spec.n_layers = test_random_between(random, 1, 3);
  spec.n_kv_heads = test_random_between(random, 1, 3);
  spec.n_q_heads = spec.n_kv_heads * kGroups[test_random_below(random, 4)];
  spec.max_tokens = test_random_between(random, 100, 180);
  spec.max_positions = 900;
  spec.k_head_dim = test_random_between(random, 1, 40);
  spec.v_head_dim = test_random_below(random, 20);
  spec.q_dtype = kTypes[test_random_below(random, 3)];
  spec.k_dtype = kTypes[test_random_below(random, 3)];
  if (test_random_below(random, 3) == 0) test_draw_quantized(&spec, random);
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(random, 3);
  spec.n_threads = test_random_between(random, 1, 4);
  return spec;
}

static const char* const kScopes[] = {"head", "layer", "model"};
static const char* const kReduces[] = {"mean", "max", "sum"};

static void RandomPolicy(test_random* random, const char* kind, char* text,
                         size_t capacity) {
  const uint32_t scope = test_random_below(random, 3);
  static const char* const kSplits[] = {"uniform", "geometric",
                                        "arithmetic-kvf", "arithmetic-kvpress"};
  static const char* const kPools[] = {"none", "avg5", "max5", "avg7"};
  const bool ranks = strcmp(kind, "streaming-llm") != 0;
  const bool by_queries = ranks && strcmp(kind, "custom") != 0;
  size_t n = (size_t)snprintf(
      text, capacity, "%s:budget=%u,sink=%u,recent=%u,split=%s,alpha=0.8", kind,
      test_random_between(random, 40, 90), test_random_below(random, 5),
      test_random_below(random, 20),
      kSplits[ranks && scope == 2 ? 0 : test_random_below(random, 4)]);
  if (ranks) {
    n += (size_t)snprintf(text + n, capacity - n,
                          ",pool=%s,scope=%s,over=%s,tie=%s",
                          kPools[test_random_below(random, 4)], kScopes[scope],
                          kReduces[test_random_below(random, 3)],
                          test_random_coin(random) ? "lower" : "higher");
  }
  if (by_queries) {
    snprintf(text + n, capacity - n, ",window=%u,rows=%s,group=%s,order=%s",
             test_random_between(random, 1, 20),
             test_random_coin(random) ? "mean" : "sum",
             kReduces[test_random_below(random, 3)],
             test_random_coin(random) ? "reduce-pool" : "pool-reduce");
  }
}

/* ---- The expected keep sets ---- */

/* The content of a layer before an eviction. */
typedef struct snapshot {
  uint32_t n;
  int32_t positions[3][kMaxTokens];
  uint8_t forced[3][kMaxTokens];
  double scores[3][kMaxTokens]; /* per list, reduced over the scope */
  double largest;
} snapshot;

static void TakeSnapshots(const test_model* m,
                          const kvevict_evict_options* options,
                          snapshot* layers) {
  const uint32_t heads = m->spec.n_kv_heads;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    layers[l].n = test_model_stored(m, l);
    for (uint32_t h = 0; h < heads; ++h) {
      test_model_positions(m, l, h, layers[l].positions[h]);
      test_model_forced(m, l, h, options, layers[l].forced[h]);
    }
  }
}

/* Reduces what `get` returns over the heads (and layers) that share a list. */
static void CombineScores(const test_model* m, snapshot* layers,
                          double (*all)[3][kMaxTokens]) {
  const uint32_t heads = m->spec.n_kv_heads;
  const oracle_policy* p = &m->policy;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    layers[l].largest = 0.0;
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t t = 0; t < layers[l].n; ++t) {
        double sum = 0.0, highest = -INFINITY;
        uint32_t terms = 0;
        for (uint32_t l2 = 0; l2 < m->spec.n_layers; ++l2) {
          if (l2 != l && p->scope != KVEVICT_SCOPE_MODEL) continue;
          for (uint32_t h2 = 0; h2 < heads; ++h2) {
            if (h2 != h && p->scope == KVEVICT_SCOPE_KV_HEAD) continue;
            sum += all[l2][h2][t];
            highest = fmax(highest, all[l2][h2][t]);
            terms += 1;
          }
        }
        if (p->over == KVEVICT_REDUCE_MEAN) sum /= terms;
        const double score = p->over == KVEVICT_REDUCE_MAX ? highest : sum;
        layers[l].scores[h][t] = score;
        if (isfinite(score)) {
          layers[l].largest = fmax(layers[l].largest, fabs(score));
        }
      }
    }
  }
}

static void ExpectKept(const test_model* m, const snapshot* before,
                       double relative, const char* what) {
  uint32_t budgets[TEST_MAX_LAYERS];
  EXPECT(oracle_layer_budgets(&m->policy, test_model_context(m), budgets,
                              m->spec.n_layers),
         "%s: no budgets", what);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const uint32_t n = test_model_stored(m, l);
    const uint32_t want = before[l].n < budgets[l] ? before[l].n : budgets[l];
    EXPECT(n == want, "%s: layer %u keeps %u of %u, not %u", what, l, n,
           before[l].n, want);
    if (n == before[l].n) continue;
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      int32_t slots[kMaxTokens];
      test_model_kept_slots(m, l, h, before[l].positions[h], before[l].n,
                            slots);
      EXPECT(oracle_selection_is_right(before[l].scores[h], before[l].n, slots,
                                       n, before[l].forced[h],
                                       relative * before[l].largest),
             "%s: layer %u, head %u keeps what it should not", what, l, h);
    }
  }
}

/* ---- Attention ---- */

static void ScoreByOracle(const test_model* m, double (*all)[3][kMaxTokens]) {
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    double scores[3 * kMaxTokens];
    const uint32_t n = test_model_stored(m, l);
    test_model_oracle_scores(m, l, scores);
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      memcpy(all[l][h], scores + (size_t)h * n, n * sizeof(double));
    }
  }
}

/* Prefill in chunks, evict, decode, evict ... against the oracle every time. */
Test(property,
     attention_policies_agree_with_the_oracle_through_many_evictions) {
  test_random random = test_random_start("property attention");
  static double all[TEST_MAX_LAYERS][3][kMaxTokens];
  static snapshot before[TEST_MAX_LAYERS];
  for (int i = 0; i < 60; ++i) {
    char policy[300];
    RandomPolicy(&random, test_random_coin(&random) ? "snapkv" : "pyramidkv",
                 policy, sizeof policy);
    const test_model_spec spec = RandomSpec(&random, policy);
    test_model* m = test_model_create(&spec, random);
    char what[500];
    snprintf(what, sizeof what, "%s, %s", policy,
             test_layout_name(spec.layout));
    for (int round = 0; round < 5; ++round) {
      uint32_t room = spec.max_tokens;
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        const uint32_t left = spec.max_tokens - test_model_stored(m, l);
        room = left < room ? left : room;
      }
      uint32_t n = round == 0 ? room : test_random_below(&random, room + 1);
      while (n > 0) {
        const uint32_t chunk = test_random_between(&random, 1, n);
        test_model_step(m, chunk);
        n -= chunk;
      }
      TakeSnapshots(m, NULL, before);
      ScoreByOracle(m, all);
      CombineScores(m, before, all);
      kvevict_evict_report report = {.struct_size = sizeof report};
      const kvevict_status status = test_model_evict(m, NULL, &report);
      EXPECT(status == KVEVICT_OK, "%s: %s", what,
             kvevict_last_error_message());
      /* f32 sums of weights are <= window; score_test.c derives the rounding. */
      ExpectKept(m, before, 1e-4, what);
      test_model_check(m, what);
    }
    test_model_destroy(m);
  }
}

/* ---- Caller's scores: exact ---- */

static float GridScore(test_random* random) {
  switch (test_random_below(random, 30)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    default:
      return (float)((int)test_random_below(random, 64) - 32) / 4.0f;
  }
}

/* A width of 1 pools nothing. */
static void MaxPool(const float* row, uint32_t n, uint32_t width, float* out) {
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t begin = i < width / 2 ? 0 : i - width / 2;
    const uint32_t end = n - i <= width / 2 ? n : i + width / 2 + 1;
    out[i] = row[begin];
    for (uint32_t j = begin; j < end; ++j) {
      if (isnan(row[j]) || row[j] > out[i]) out[i] = row[j];
      if (isnan(out[i])) break;
    }
  }
}

Test(property, custom_scores_select_exactly_as_the_oracle) {
  test_random random = test_random_start("property custom");
  static float scores[3][3][kMaxTokens];
  static snapshot before[TEST_MAX_LAYERS];
  for (int i = 0; i < 150; ++i) {
    char policy[300];
    RandomPolicy(&random, "custom", policy, sizeof policy);
    /* Averages round, maxima do not. */
    const uint32_t width = 1 + 2 * test_random_below(&random, 4);
    snprintf(policy + strlen(policy), sizeof policy - strlen(policy),
             ",pool=max%u", width);
    const test_model_spec spec = RandomSpec(&random, policy);
    test_model* m = test_model_create(&spec, random);
    for (int round = 0; round < 3; ++round) {
      const uint32_t room = spec.max_tokens;
      uint32_t held = 0;
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        const uint32_t n = test_model_stored(m, l);
        held = n > held ? n : held;
      }
      test_model_append(m, round == 0 ? room : (room - held) / 2);
      for (uint32_t l = 0; l < 3; ++l) {
        for (uint32_t h = 0; h < 3; ++h) {
          for (uint32_t t = 0; t < kMaxTokens; ++t) {
            scores[l][h][t] = GridScore(&random);
          }
        }
      }
      int32_t protect[3];
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      options.protected_positions = protect;
      options.protected_positions_len = test_random_below(&random, 4);
      test_random_ascending(&random, protect,
                            (uint32_t)options.protected_positions_len,
                            m->n_seen);
      test_inputs inputs;
      test_give_scores(&options, &inputs, spec.n_layers, scores[0][0],
                       3 * kMaxTokens, kMaxTokens);
      TakeSnapshots(m, &options, before);
      if (test_model_evict(m, &options, NULL) != KVEVICT_OK) {
        EXPECT(strstr(kvevict_last_error_message(), "protected") != NULL,
               "%s: %s", policy, kvevict_last_error_message());
        break;
      }
      const oracle_policy* p = &m->policy;
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        const uint32_t n = test_model_stored(m, l);
        if (n == before[l].n) continue;
        for (uint32_t h = 0; h < spec.n_kv_heads; ++h) {
          float rows[9 * kMaxTokens], combined[kMaxTokens];
          uint32_t n_rows = 0;
          for (uint32_t l2 = 0; l2 < spec.n_layers; ++l2) {
            if (l2 != l && p->scope != KVEVICT_SCOPE_MODEL) continue;
            for (uint32_t h2 = 0; h2 < spec.n_kv_heads; ++h2) {
              if (h2 != h && p->scope == KVEVICT_SCOPE_KV_HEAD) continue;
              MaxPool(scores[l2][h2], before[l].n, width,
                      rows + (size_t)n_rows * before[l].n);
              n_rows += 1;
            }
          }
          oracle_combine(rows, n_rows, before[l].n, p->over, combined);
          int32_t expected[kMaxTokens], slots[kMaxTokens];
          oracle_select(combined, before[l].n, n, before[l].forced[h], p->tie,
                        expected);
          test_model_kept_slots(m, l, h, before[l].positions[h], before[l].n,
                                slots);
          EXPECT(memcmp(expected, slots, n * sizeof(int32_t)) == 0,
                 "%s: layer %u, head %u: not the oracle's choice", policy, l,
                 h);
        }
      }
      test_model_check(m, policy);
    }
    test_model_destroy(m);
  }
}

/* ---- Places alone: exact ---- */

/* Sinks, protected positions and the last of the rest stay. */
Test(property, streaming_llm_keeps_the_last_that_have_room) {
  test_random random = test_random_start("property streaming");
  static snapshot before[TEST_MAX_LAYERS];
  static float places[kMaxTokens];
  for (uint32_t t = 0; t < kMaxTokens; ++t) places[t] = (float)t;
  uint32_t n_protecting = 0, n_refused = 0;
  for (int i = 0; i < 200; ++i) {
    char policy[300];
    RandomPolicy(&random, "streaming-llm", policy, sizeof policy);
    const test_model_spec spec = RandomSpec(&random, policy);
    test_model* m = test_model_create(&spec, random);
    test_model_append(m, spec.max_tokens);
    for (int round = 0; round < 3; ++round) {
      int32_t protect[8];
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      options.protected_positions = protect;
      options.protected_positions_len = test_random_below(&random, 9);
      test_random_ascending(&random, protect,
                            (uint32_t)options.protected_positions_len,
                            m->n_seen);
      TakeSnapshots(m, &options, before);
      if (test_model_evict(m, &options, NULL) != KVEVICT_OK) {
        EXPECT(strstr(kvevict_last_error_message(), "protected") != NULL,
               "%s: %s", policy, kvevict_last_error_message());
        n_refused += 1;
        break;
      }
      n_protecting += options.protected_positions_len > 0;
      uint32_t longest = 0;
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        const uint32_t n = test_model_stored(m, l);
        longest = n > longest ? n : longest;
        for (uint32_t h = 0; n < before[l].n && h < spec.n_kv_heads; ++h) {
          int32_t expected[kMaxTokens], slots[kMaxTokens];
          oracle_select(places, before[l].n, n, before[l].forced[h],
                        KVEVICT_TIE_LOWER_POSITION, expected);
          test_model_kept_slots(m, l, h, before[l].positions[h], before[l].n,
                                slots);
          EXPECT(memcmp(expected, slots, n * sizeof(int32_t)) == 0,
                 "%s: layer %u, head %u: not the last ones", policy, l, h);
        }
      }
      test_model_check(m, policy);
      test_model_append(m, (spec.max_tokens - longest) / 2);
    }
    test_model_destroy(m);
  }
  cr_expect(n_protecting > 100 && n_refused < 100, "%u, %u refused",
            n_protecting, n_refused);
}

/* ---- Same tokens whatever the layout, the threads, the run ---- */

static const char* const kPolicies[] = {
    "snapkv:budget=60,window=16",
    "snapkv:budget=60,window=16,scope=model,over=max",
    "pyramidkv:budget=60,window=8,alpha=0.8",
    "streaming-llm:budget=33",
    "random:sink=0,budget=50,seed=3",
    "random:sink=0,budget=50,scope=layer",
    "tova:budget=40",
    "knorm:budget=40,weight=norm",
    "keydiff:budget=40,scope=layer",
    "keydiff:budget=40,block=16",
    "lagkv:budget=40,block=16",
    "cur:budget=40",
    "r-kv:budget=40,window=8",
    "knorm:budget=48,chunk=48",
    "knorm:budget=40,heads=adaptive",
    "knorm:budget=40,merge=values",
    "knorm:budget=40,merge=pivot,scope=layer",
    "snapkv:budget=40,window=8,fit=values",
};

/* Whether rows stay as they are. */
static bool LeavesRows(const char* policy) {
  return strstr(policy, "merge") == NULL && strstr(policy, "fit") == NULL;
}

/* Takes the second eviction back and evicts again, where that is possible. */
static test_model* RunScenario(const char* policy, test_layout layout,
                               uint32_t n_threads, uint32_t chunk) {
  const test_model_spec spec = {.policy = policy,
                                .n_layers = 3,
                                .n_q_heads = 8,
                                .n_kv_heads = 2,
                                .max_tokens = 150,
                                .max_positions = 240,
                                .k_head_dim = 24,
                                .v_head_dim = 10,
                                .q_dtype = KVEVICT_DTYPE_BF16,
                                .k_dtype = KVEVICT_DTYPE_F16,
                                .layout = layout,
                                .n_companions = 2,
                                .n_threads = n_threads};
  test_model* m = test_model_create(&spec, (test_random){77});
  const uint32_t kLengths[] = {150, 40, 7, 43};
  for (int round = 0; round < 4; ++round) {
    for (uint32_t done = 0; done < kLengths[round]; done += chunk) {
      const uint32_t left = kLengths[round] - done;
      test_model_step(m, left < chunk ? left : chunk);
    }
    if (round == 1 && LeavesRows(policy)) {
      const test_lent lent = test_lend(test_undo_bytes(m));
      EXPECT_OK(test_evict_lending(m, lent, NULL));
      EXPECT_OK(test_undo(m, lent));
      test_lent_return(lent);
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  return m;
}

static void ExpectSame(const test_model* a, const test_model* b,
                       const char* what) {
  test_expect_same_tokens(a, b, what);
  for (uint32_t l = 0; l < a->spec.n_layers; ++l) {
    uint32_t ends[8];
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      ends[h] = test_model_stored_of(a, l, h);
    }
    test_expect_same_rows_of_heads(a->live[l], b->live[l], ends, what);
  }
}

Test(property, layouts_threads_and_chunks_give_the_same_bytes) {
  for (size_t p = 0; p < sizeof kPolicies / sizeof kPolicies[0]; ++p) {
    test_model* reference =
        RunScenario(kPolicies[p], TEST_TOKEN_MAJOR, 1, 1000);
    if (LeavesRows(kPolicies[p])) test_model_check(reference, kPolicies[p]);
    for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
      test_model* m = RunScenario(kPolicies[p], (test_layout)layout,
                                  1 + (uint32_t)layout % 4, 1000);
      ExpectSame(reference, m, test_layout_name(layout));
      test_model_destroy(m);
    }
    for (uint32_t n_threads = 1; n_threads <= 4; ++n_threads) {
      test_model* m =
          RunScenario(kPolicies[p], TEST_TOKEN_MAJOR, n_threads, 1000);
      ExpectSame(reference, m, "threads");
      cr_expect(n_threads == 1 || m->runner.n_calls > 0,
                "the parallel hook was never called");
      test_model_destroy(m);
    }
    for (uint32_t chunk = 1; chunk < 100; chunk = 2 * chunk + 1) {
      test_model* m = RunScenario(kPolicies[p], TEST_TOKEN_MAJOR, 1, chunk);
      ExpectSame(reference, m, "chunks");
      test_model_destroy(m);
    }
    test_model_destroy(reference);
  }
}

/* A workspace of the announced size suffices at every length, for every split, and
 * for sinks larger than what steep schedules leave to the last layers. The guard
 * bytes behind it prove that. */
Test(property, announced_workspaces_suffice_for_steep_schedules) {
  const char* const kSplits[] = {"geometric,alpha=0.3", "arithmetic-kvf",
                                 "arithmetic-kvpress", "arithmetic-kvf,beta=1",
                                 "arithmetic-kvf,beta=1000"};
  for (int s = 0; s < 5; ++s) {
    for (uint32_t sink = 0; sink <= 60; sink += 30) {
      for (uint32_t length = 140; length <= 480; length += 20) {
        char policy[200];
        snprintf(policy, sizeof policy,
                 "custom:budget=64,sink=%u,recent=3,split=%s", sink,
                 kSplits[s]);
        const test_model_spec spec = {.policy = policy,
                                      .n_layers = 4,
                                      .n_q_heads = 1,
                                      .n_kv_heads = 1,
                                      .max_tokens = 480,
                                      .max_positions = 480,
                                      .k_head_dim = 1,
                                      .q_dtype = KVEVICT_DTYPE_F32,
                                      .k_dtype = KVEVICT_DTYPE_F32};
        static float scores[4 * 480];
        kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
        test_inputs inputs;
        test_give_scores(&options, &inputs, 4, scores, 480, 0);
        test_model* m = test_model_create(&spec, (test_random){1});
        test_model_append(m, length);
        EXPECT_OK(test_model_evict(m, &options, NULL));
        test_model_check(m, policy);
        test_model_destroy(m);
      }
    }
  }
}
