/* Tries what docs/migration.md says. The engine's own rules are written out here,
 * so that kvevict's keep lists can be held against them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/select.h"

/* The page's policy text for three numbers of the engine's configuration. */
static const char* TextOf(int32_t budget, int32_t window, int32_t recency) {
  static char text[128];
  if (window < 1) window = 1;
  if (recency < 0) recency = 0;
  if (budget <= 0) return "none";
  if (recency >= budget) {
    snprintf(text, sizeof text, "streaming-llm:sink=0,recent=%d", budget);
  } else {
    snprintf(text, sizeof text,
             "snapkv-sharpinference:budget=%.9g,window=%d,recent=%d",
             budget == 1 ? 1.5 : (double)budget, window, recency);
  }
  return text;
}

/* The engine keeps the last tokens and the best before them, the lower of two
 * equal positions. Returns the list's length. */
static uint32_t EngineKeeps(const float* scores, uint32_t n, uint32_t budget,
                            uint32_t recency, int32_t* keep) {
  uint8_t* kept = calloc(n, 1);
  const uint32_t k = budget < n ? budget : n;
  const uint32_t last = recency < k ? recency : k;
  memset(kept + n - last, 1, last);
  for (uint32_t i = last; i < k; ++i) {
    int64_t best = -1;
    for (uint32_t p = 0; p < n - last; ++p) {
      if (!kept[p] && (best < 0 || scores[p] > scores[best])) best = p;
    }
    kept[best] = 1;
  }
  uint32_t n_keep = 0;
  for (uint32_t p = 0; p < n; ++p) {
    if (kept[p]) keep[n_keep++] = (int32_t)p;
  }
  free(kept);
  return n_keep;
}

/* kvevict's list for the same scores. */
static uint32_t Keeps(const char* text, const float* scores, uint32_t n,
                      int32_t* keep) {
  const kvevict_layer_geometry layer = test_layer(1, 1, 1, 1);
  const kvevict_geometry g = test_geometry(1, n, &layer);
  test_plan* p = test_plan_create_to_select(text, &g, 1);
  uint32_t n_keep = 0;
  const bool ranks = p->policy.kind == ORACLE_SNAPKV;
  EXPECT_OK(test_select(p, 0, ranks ? scores : NULL, ranks ? n : 0, n, NULL, 0,
                        keep, n, &n_keep));
  test_plan_destroy(p);
  return n_keep;
}

/* Budgets lie around 1, recencies around the budget, and scores tie. */
Test(migration, keep_lists_are_the_engines_for_the_same_scores) {
  enum { N = 200 };
  test_random random = {2024};
  int32_t expected[N], keep[N];
  float scores[N];
  static const int32_t kBudgets[] = {1, 2, 3, 64, 65, 199, 200, 201, 4096};
  for (size_t b = 0; b < sizeof kBudgets / sizeof kBudgets[0]; ++b) {
    const int32_t budget = kBudgets[b];
    const int32_t recencies[] = {-1, 0, 1, budget - 1, budget, budget + 1, 64};
    for (int r = 0; r < 7; ++r) {
      for (uint32_t i = 0; i < N; ++i) {
        scores[i] = floorf(8.0f * fabsf(test_random_normal(&random)));
      }
      const int32_t recency = recencies[r];
      const uint32_t n =
          EngineKeeps(scores, N, (uint32_t)budget,
                      recency < 0 ? 0 : (uint32_t)recency, expected);
      const char* text = TextOf(budget, 64, recency);
      const uint32_t n_keep = Keeps(text, scores, N, keep);
      EXPECT(n_keep == n && memcmp(keep, expected, n * sizeof *keep) == 0,
             "budget %d, recency %d: %s keeps %u tokens or others", budget,
             recency, text, n_keep);
    }
  }
}

Test(migration, numbers_that_would_say_something_else) {
  EXPECT_NO_POLICY("snapkv-sharpinference:budget=64,recent=64",
                   "sink 0 + recent 64 >= budget 64");
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  const kvevict_policy* policy =
      test_policy("snapkv-sharpinference:budget=1,recent=0");
  EXPECT_OK(kvevict_policy_resolve(policy, 1000, &resolved));
  cr_expect_eq(resolved.budget, 1000, "a ratio: everything");
  policy = test_policy(TextOf(1, 64, 0));
  EXPECT_OK(kvevict_policy_resolve(policy, 1000, &resolved));
  cr_expect_eq(resolved.budget, 1);
  cr_expect_eq(oracle_policy_from(TextOf(0, 64, 64)).kind, ORACLE_NONE);
  cr_expect_eq(oracle_policy_from(TextOf(-5, 64, 64)).kind, ORACLE_NONE);
  cr_expect_eq(oracle_policy_from(TextOf(512, 0, 64)).window, 1);
}

/* NaN is the worst score. The lower position of several NaNs stays. */
Test(migration, nan_scores_come_last_the_lower_position_first) {
  const float scores[] = {NAN, 1.0f, NAN, -INFINITY, NAN, 0.0f};
  int32_t keep[6];
  cr_assert_eq(Keeps(TextOf(4, 6, 0), scores, 6, keep), 4);
  const int32_t expected[] = {0, 1, 3, 5};
  cr_expect_arr_eq(keep, expected, sizeof expected);
}

/* ---- What it scores by ---- */

static test_model* Model(const char* policy, uint32_t n_layers) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = n_layers;
  spec.v_head_dim = spec.k_head_dim;
  return test_model_create(&spec, (test_random){5});
}

static void ExpectEvicts(test_model* m, bool evicts) {
  kvevict_evict_report report = {.struct_size = sizeof report};
  EXPECT_OK(test_model_evict(m, NULL, &report));
  cr_expect_eq(report.evicted, evicts);
}

/* The engine's sums in double, over layers, the window's rows and query heads, of
 * the softmax over the keys that a row sees. */
static void EngineScores(const test_model* m, uint32_t n, uint32_t window,
                         double* scores) {
  const test_model_spec* s = &m->spec;
  const uint32_t group = s->n_q_heads / s->n_kv_heads;
  double* weights = malloc(n * sizeof *weights);
  memset(scores, 0, n * sizeof *scores);
  for (uint32_t l = 0; l < s->n_layers; ++l) {
    const test_cache* keys = m->archive[l];
    for (uint32_t q = n - window; q < n; ++q) {
      for (uint32_t h = 0; h < s->n_q_heads; ++h) {
        const uint8_t* row = m->queries[l] + ((size_t)q * s->n_q_heads + h) *
                                                 s->k_head_dim *
                                                 test_element_bytes(s->q_dtype);
        double sum = 0.0;
        for (uint32_t p = 0; p <= q; ++p) {
          double dot = 0.0;
          for (uint32_t e = 0; e < s->k_head_dim; ++e) {
            const double x =
                test_load(s->q_dtype, row + e * test_element_bytes(s->q_dtype));
            dot += x * test_cache_get(keys, &keys->view.k, p, h / group, e);
          }
          sum += weights[p] = exp(dot / sqrt((double)s->k_head_dim));
        }
        for (uint32_t p = 0; p <= q; ++p) scores[p] += weights[p] / sum;
      }
    }
  }
  free(weights);
}

/* Queries give keep sets: all layers and heads keep the last tokens and the best
 * before them. The window itself is not protected. */
Test(migration, keep_sets_are_the_engines_for_the_same_queries) {
  enum { N = 120 };
  static const int32_t kCases[][3] = {{70, 64, 64}, {70, 64, 0},  {100, 16, 64},
                                      {119, 1, 0},  {1, 64, 0},   {2, 64, 1},
                                      {64, 64, 64}, {40, 64, 64}, {1, 64, 64}};
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    const int32_t *c = kCases[i], recency = c[2] < c[0] ? c[2] : c[0];
    test_model_spec spec = test_small_model(TextOf(c[0], c[1], c[2]));
    spec.n_layers = 3;
    spec.max_tokens = N;
    test_model* m = test_model_create(&spec, (test_random){(uint64_t)i + 1});
    test_model_step(m, N);
    double scores[N];
    EngineScores(m, N, (uint32_t)c[1], scores);
    uint8_t forced[N] = {0};
    memset(forced + N - recency, 1, (size_t)recency);
    ExpectEvicts(m, true);
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      for (uint32_t h = 0; h < spec.n_kv_heads; ++h) {
        int32_t kept[N];
        EXPECT(test_model_stored_of(m, l, h) == (uint32_t)c[0],
               "budget %d: %u tokens", c[0], test_model_stored_of(m, l, h));
        test_model_positions(m, l, h, kept);
        EXPECT(oracle_selection_is_right(scores, N, kept, (uint32_t)c[0],
                                         forced, 1e-4),
               "budget %d, window %d, recency %d: layer %u, head %u keeps "
               "others than the best",
               c[0], c[1], c[2], l, h);
      }
    }
    test_model_check(m, "engine");
    test_model_destroy(m);
  }
}

/* ---- When it evicts ---- */

Test(migration, a_window_that_covers_the_prompt) {
  test_model* m = Model(TextOf(10, 64, 4), 2);
  test_model_step(m, 63); /* over the budget, shorter than the window */
  ExpectEvicts(m, false);
  cr_expect_eq(test_model_stored(m, 0), 63);
  test_model_step(m, 1); /* the engine wants more than the window */
  ExpectEvicts(m, true);
  test_model_destroy(m);
}

Test(migration, later_turns_are_evicted_too) {
  test_model* m = Model(TextOf(40, 8, 4), 2);
  test_model_step(m, 60);
  ExpectEvicts(m, true);
  cr_expect_eq(test_model_stored(m, 0), 40);
  ExpectEvicts(m, false); /* within the budget */
  test_model_step(m, 20);
  ExpectEvicts(m, true);
  cr_expect_eq(test_model_stored(m, 0), 40);
  test_model_check(m, "second turn");
  test_model_destroy(m);
}

/* ---- Automatic budget ---- */

static uint32_t EngineAutoBudget(uint32_t max_tokens, uint64_t bytes) {
  if (bytes > 0 && bytes < (uint64_t)256 << 20) return 0;
  const uint32_t c = max_tokens / 4;
  if (c < 1024) return max_tokens < 1024 ? max_tokens : 1024;
  return c > 4096 ? 4096 : c;
}

Test(migration, automatic_budgets_are_the_engines) {
  const uint32_t kTokens[] = {1,    1023,  1024,  1025,   4095,      4096,
                              4100, 16383, 16384, 100000, 2147483647};
  const uint64_t kBytes[] = {0, 1, (256 << 20) - 1, 256 << 20, UINT64_MAX};
  for (size_t t = 0; t < sizeof kTokens / sizeof kTokens[0]; ++t) {
    for (size_t b = 0; b < sizeof kBytes / sizeof kBytes[0]; ++b) {
      uint32_t budget = 12345;
      /* The engine writes 0 for unknown. */
      const uint64_t bytes = kBytes[b] == 0 ? UINT64_MAX : kBytes[b];
      EXPECT_OK(kvevict_auto_budget(kTokens[t], bytes, &budget));
      EXPECT(budget == EngineAutoBudget(kTokens[t], kBytes[b]),
             "%u tokens, %llu bytes: %u", kTokens[t],
             (unsigned long long)kBytes[b], budget);
    }
  }
  uint32_t budget = 12345;
  EXPECT_OK(kvevict_auto_budget(100000, 0, &budget));
  cr_expect_eq(budget, 0, "0 bytes are a small cache here");
}

/* ---- Pages that are allocated one by one ---- */

enum {
  kLayers = 3,
  kPage = 16, /* tokens */
  kPrompt = 100,
  kPages = (kPrompt + kPage - 1) / kPage,
  kHeads = 2,
  kDim = 16,
  kHalf = kPage * kHeads * kDim * 4, /* bytes of the keys of a page */
};

/* Keys, then values, straight from malloc. slots[i] has page i of every layer. */
typedef struct test_pages {
  uint8_t* pages[kLayers][2 * kPages];
  int32_t slots[kPages];
} test_pages;

static void AllocatePages(test_pages* p) {
  memset(p, 0, sizeof *p);
  for (int i = kPages - 1; i >= 0; --i) {
    p->slots[i] = (i * 5 + 3) % (2 * kPages);
    for (int l = 0; l < kLayers; ++l) {
      p->pages[l][p->slots[i]] = malloc(2 * kHalf);
    }
  }
}

static void FreePages(test_pages* p) {
  for (int l = 0; l < kLayers; ++l) {
    for (int i = 0; i < 2 * kPages; ++i) free(p->pages[l][i]);
  }
}

/* The view of a layer's pages, by the engine's table. */
static kvevict_view ViewOf(const test_pages* p, int layer) {
  kvevict_view view = {.struct_size = sizeof view, .n_kv_heads = kHeads};
  view.k.address_table = (uint64_t)(uintptr_t)p->pages[layer];
  view.k.address_table_len = 2 * kPages;
  view.k.token_stride_bytes = kHeads * kDim * 4;
  view.k.head_stride_bytes = kDim * 4;
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = kDim;
  view.v = view.k;
  view.v.data = kHalf;
  view.block_size = kPage;
  view.block_table = p->slots;
  view.block_table_len = kPages;
  return view;
}

/* The address of an element in the K half (0) or V half (1) of a token's rows. */
static float* Element(test_pages* p, int layer, int half, uint32_t slot,
                      uint32_t i) {
  return (float*)(p->pages[layer][p->slots[slot / kPage]] +
                  (size_t)half * kHalf) +
         (slot % kPage) * kHeads * kDim + i;
}

static float Mark(int layer, int half, uint32_t token, uint32_t i) {
  return (float)(((layer * 2 + half) * kPrompt + (int)token) * 64 + (int)i);
}

Test(migration, separate_pages_are_evicted_where_they_lie) {
  test_pages p;
  AllocatePages(&p);
  test_model* m = Model(TextOf(40, 8, 4), kLayers);
  for (int l = 0; l < kLayers; ++l) {
    m->views[l] = ViewOf(&p, l);
    for (uint32_t t = 0; t < kPrompt; ++t) {
      for (uint32_t i = 0; i < 2 * kHeads * kDim; ++i) {
        const int half = i >= kHeads * kDim;
        const uint32_t e = i % (kHeads * kDim);
        *Element(&p, l, half, t, e) = Mark(l, half, t, e);
      }
    }
  }
  test_model_observe(m, 0, kPrompt);
  EXPECT_OK(kvevict_sequence_append(m->sequence, kPrompt, NULL));
  kvevict_evict_report report = {.struct_size = sizeof report};
  EXPECT_OK(test_model_evict(m, NULL, &report));
  int32_t kept[40];
  test_model_positions(m, 0, 0, kept);
  for (int l = 0; l < kLayers; ++l) {
    for (uint32_t slot = 0; slot < 40; ++slot) {
      for (uint32_t i = 0; i < 2 * kHeads * kDim; ++i) {
        const int half = i >= kHeads * kDim;
        const uint32_t e = i % (kHeads * kDim);
        EXPECT(*Element(&p, l, half, slot, e) ==
                   Mark(l, half, (uint32_t)kept[slot], e),
               "layer %d, slot %u, element %u", l, slot, i);
      }
    }
  }
  /* 7 pages held the prompt and 3 hold what is left, in every layer. */
  cr_expect_eq(report.blocks_freed, (uint64_t)(kPages - 3) * kLayers);
  test_model_destroy(m);
  FreePages(&p);
}

/* ---- Rollback ---- */

Test(migration, trim_takes_back_tokens_not_slots) {
  test_model* m = Model(TextOf(40, 8, 4), 2);
  test_model_step(m, 60);
  ExpectEvicts(m, true);
  test_model_append(m, 9);
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 63, NULL));
  cr_expect_eq(test_model_stored(m, 0), 43);
  uint32_t logical = 0;
  EXPECT_OK(kvevict_sequence_logical_length(m->sequence, &logical));
  cr_expect_eq(logical, 63);
  test_model_destroy(m);
}
