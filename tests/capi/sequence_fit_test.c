/* Evictions that fit values: under any policy, the values that stay are fitted to the
 * reference queries, or to the window's, as the oracle says. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/merged.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/fit.h"

enum { kMostRows = 40 };

/* Queries of a KV head as f32, [n_rows, group, k_head_dim]. */
static float* ReadQueries(const test_model* m, uint32_t layer, uint32_t head,
                          uint32_t first, uint32_t n_rows) {
  const test_model_spec* s = &m->spec;
  const uint32_t group = s->n_q_heads / s->n_kv_heads;
  const uint32_t size = test_element_bytes(s->q_dtype);
  float* const rows =
      malloc((size_t)n_rows * group * s->k_head_dim * sizeof *rows);
  float* next = rows;
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t g = 0; g < group; ++g) {
      const size_t row = (size_t)(first + r) * s->n_q_heads + head * group + g;
      for (uint32_t i = 0; i < s->k_head_dim; ++i) {
        *next++ = test_load(
            s->q_dtype, m->queries[layer] + (row * s->k_head_dim + i) * size);
      }
    }
  }
  return rows;
}

/* The queries of each query head that values are fitted to. */
static uint32_t FitRows(const test_model* m) {
  return m->policy.reference > 0 ? m->policy.reference : m->policy.window;
}

/* The largest change seen, in bounds of it, and the largest change of a bias. */
static double most_changed, most_biased;

static int FitsBiases(const test_model* m) {
  return strstr(m->spec.policy, "fit=bias-values") != NULL;
}

static const kvevict_plane* BiasesOf(const kvevict_view* view) {
  if (view->n_companions == 0) return NULL;
  return view->companions[0].role == KVEVICT_ROLE_BIAS ? view->companions
                                                       : NULL;
}

/* Fitted biases are where the slope of their squares is 0, or beyond a limit. */
static void ExpectFittedBiases(const oracle_fit* in, const char* what) {
  double* const pulls = malloc(in->n_keep * sizeof *pulls);
  double* const bounds = malloc(in->n_keep * sizeof *bounds);
  oracle_fit_bias_pulls(in, pulls, bounds);
  for (uint32_t t = 0; t < in->n_keep; ++t) {
    const double got = in->fitted_biases[t];
    const double change = got - (double)in->biases[in->keep[t]];
    const double most = 3 - 0x1p-23 * fabs(got);
    EXPECT((change <= -most || pulls[t] <= bounds[t]) &&
               (change >= most || pulls[t] >= -bounds[t]),
           "%s: slot %u: bias %g, changed by %g, is pulled by %g, not %g", what,
           t, got, change, pulls[t], bounds[t]);
    most_biased = fmax(most_biased, fabs(change));
  }
  free(pulls);
  free(bounds);
}

/* Compares the values of one head. `sinks`: of the layer's query heads, or NULL. */
static void ExpectFitted(const test_model* m, uint32_t layer, uint32_t head,
                         const test_cache* before, const test_cache* moved,
                         uint32_t n_held, const int32_t* keep, uint32_t n_keep,
                         const float* sinks, const char* what) {
  const test_cache* got = m->live[layer];
  const kvevict_view* view = &before->view;
  const uint32_t dim = view->v.head_dim;
  const uint32_t group = m->spec.n_q_heads / m->spec.n_kv_heads;
  const uint32_t n_rows = FitRows(m);
  const uint32_t first =
      m->policy.reference > 0 ? m->reference_first : m->n_seen - n_rows;
  float* const keys = test_read_rows(before, &view->k, head, n_held);
  float* const values = test_read_rows(before, &view->v, head, n_held);
  float* const queries = ReadQueries(m, layer, head, first, n_rows);
  float* const of_rows = malloc((size_t)n_rows * group * sizeof *of_rows);
  for (uint32_t i = 0; i < n_rows * group && sinks != NULL; ++i) {
    of_rows[i] = sinks[head * group + i % group];
  }
  const kvevict_plane* const has_biases = BiasesOf(view);
  float* const biases =
      has_biases ? test_read_rows(before, has_biases, head, n_held) : NULL;
  float* const fitted =
      has_biases ? test_read_rows(got, BiasesOf(&got->view), head, n_keep)
                 : NULL;
  const size_t n = (size_t)n_keep * dim;
  double* const want = malloc(n * sizeof *want);
  double* const bounds = malloc(n * sizeof *bounds);
  const oracle_fit in = {
      .queries = queries,
      .sinks = sinks == NULL ? NULL : of_rows,
      .keys = keys,
      .values = values,
      .n_queries = n_rows * group,
      .n_tokens = n_held,
      .key_dim = view->k.head_dim,
      .value_dim = dim,
      .scale = 1.0 / sqrt((double)view->k.head_dim),
      .softcap = m->layer.logit_softcap,
      .keep = keep,
      .n_keep = n_keep,
      .ridge = m->policy.fit_ridge,
      .biases = biases,
      .fitted_biases = fitted,
  };
  if (FitsBiases(m) && n_keep < n_held) {
    ExpectFittedBiases(&in, what);
  } else if (has_biases) {
    float* const same =
        test_read_rows(moved, BiasesOf(&moved->view), head, n_keep);
    EXPECT(memcmp(same, fitted, n_keep * sizeof *same) == 0,
           "%s: a bias changed", what);
    free(same);
  }
  const double left =
      n_keep < n_held ? oracle_fit_values(&in, want, bounds) : 0;
  EXPECT(left < 1, "%s: queries read no better: %g", what, left);
  for (uint32_t t = 0; t < n_keep; ++t) {
    for (uint32_t i = 0; i < view->k.head_dim; ++i) {
      const float x = test_cache_get(got, &got->view.k, t, head, i);
      const float same = test_cache_get(moved, &moved->view.k, t, head, i);
      EXPECT(memcmp(&x, &same, sizeof x) == 0, "%s: key %u changed", what, t);
    }
    for (uint32_t i = 0; i < dim; ++i) {
      const float x = test_cache_get(got, &got->view.v, t, head, i);
      const float old = test_cache_get(moved, &moved->view.v, t, head, i);
      if (n_keep == n_held) {
        EXPECT(x == old, "%s: a head that lost nothing changed", what);
        continue;
      }
      const size_t at = (size_t)t * dim + i;
      const double bound =
          bounds[at] + test_store_error(view->v.dtype, want[at]);
      EXPECT(fabs(x - want[at]) <= bound,
             "%s: layer %u, head %u, slot %u, element %u is %.9g, not %.9g to "
             "%.3g",
             what, layer, head, t, i, (double)x, want[at], bound);
      most_changed = fmax(most_changed, fabs(want[at] - old) / bound);
    }
  }
  free(keys);
  free(values);
  free(queries);
  free(of_rows);
  free(biases);
  free(fitted);
  free(want);
  free(bounds);
}

/* Evicts and compares every layer and head with the oracle. Returns the KV heads
 * with fewer than twice as many queries as slots. */
static uint32_t EvictAndCheck(test_model* m, const float* sinks,
                              const char* what) {
  static test_held held;
  test_hold(m, &held);
  const uint32_t heads = m->spec.n_kv_heads;
  m->reference_first = m->n_seen;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  if (m->policy.reference > 0) test_model_give_reference(m, &inputs, &options);
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(test_model_evict(m, &options, &report));
  uint32_t n_weak = 0;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    test_stayed stayed;
    test_cache* moved = test_held_moved(m, &held, l, &stayed);
    for (uint32_t h = 0; h < heads; ++h) {
      n_weak += stayed.n[h] < held.n[l][h] &&
                FitRows(m) * (m->spec.n_q_heads / heads) < 2 * stayed.n[h];
      ExpectFitted(m, l, h, held.caches[l], moved, held.n[l][h],
                   stayed.slots[h], stayed.n[h],
                   sinks == NULL ? NULL : sinks + l * m->spec.n_q_heads, what);
    }
    test_cache_destroy(moved);
  }
  test_held_free(m, &held);
  EXPECT(report.n_weak_fits == n_weak, "%s: %u weak fits, not %u", what,
         report.n_weak_fits, n_weak);
  return n_weak;
}

static const char* const kPolicies[] = {
    "snapkv:budget=50,window=8,fit=values",
    "snapkv:budget=40,window=8,reference=6,fit=values",
    "snapkv:budget=20,window=8,reference=30,reference_weight=0.5,fit=values,"
    "fit_ridge=0.1",
    "snapkv:budget=40,window=8,split=scores,heads=adaptive,fit=values",
    "tova:budget=40,reference=25,fit=values",
    "r-kv:budget=40,fit=values,fit_ridge=1",
    "keydiff:sink=0,budget=30,reference=35,fit=values",
    "streaming-llm:budget=0.5,sink=2,reference=10,fit=values",
    "knorm:budget=45,sink=2,heads=adaptive,reference=40,fit=values",
    "random:sink=0,budget=45,heads=threshold,threshold=0.6,reference=9,fit="
    "values",
    "random:sink=0,budget=40,scope=model,reference=8,fit=values",
    "random:sink=0,budget=20,scope=layer,reference=30,fit=values",
    "random:sink=0,budget=48,select_block=8,reference=9,fit=values",
    "random:sink=0,budget=40,split=geometric,reference=20,fit=values",
    "random:sink=1,budget=30,chunk=24,reference=20,fit=values",
    "snapkv:budget=50,window=8,fit=bias-values",
    "snapkv:budget=20,window=8,reference=30,reference_weight=0.5,fit=bias-"
    "values,fit_ridge=0.1",
    "snapkv:budget=40,window=8,split=scores,heads=adaptive,fit=bias-values",
    "keydiff:sink=0,budget=30,reference=35,fit=bias-values",
    "random:sink=0,budget=20,scope=layer,reference=30,fit=bias-values",
    "random:sink=1,budget=30,chunk=24,reference=20,fit=bias-values"};

static test_model* Model(const char* policy, uint32_t round,
                         test_layout layout) {
  const kvevict_dtype kDTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                   KVEVICT_DTYPE_BF16};
  test_model_spec spec = test_small_model(policy);
  spec.layout = layout;
  spec.k_dtype = kDTypes[round % 3];
  spec.n_threads = 1 + round;
  spec.n_companions = round;
  spec.max_positions = 120 + kMostRows;
  const int fits_biases = strstr(policy, "fit=bias-values") != NULL;
  if (fits_biases && round == 0) spec.n_companions = 1;
  test_model* m = test_model_create(&spec, test_random_start("sequence fit"));
  for (uint32_t l = 0; l < spec.n_layers; ++l) {
    if (fits_biases || round == 2) {
      m->live[l]->companions[0].role = KVEVICT_ROLE_BIAS;
    }
  }
  return m;
}

Test(sequence_fit, every_policy_fits_as_the_oracle_says) {
  uint32_t n_weak = 0, n_heads = 0;
  most_changed = most_biased = 0;
  for (size_t i = 0; i < sizeof kPolicies / sizeof *kPolicies; ++i) {
    for (uint32_t round = 0; round < 3; ++round) {
      const uint32_t layout = (uint32_t)(i + round * 5) % TEST_N_LAYOUTS;
      test_model* m =
          Model(kPolicies[i], (uint32_t)(i + round) % 3, (test_layout)layout);
      test_model_step(m, 90);
      n_weak += EvictAndCheck(m, NULL, kPolicies[i]);
      test_model_step(m, 30);
      n_weak += EvictAndCheck(m, NULL, kPolicies[i]);
      n_heads += 2 * m->spec.n_layers * m->spec.n_kv_heads;
      test_model_destroy(m);
    }
  }
  EXPECT(most_changed > 100, "changes are at most %g bounds", most_changed);
  EXPECT(most_biased > 1, "biases change by %g at most", most_biased);
  EXPECT(n_weak > 0 && n_weak < n_heads, "%u of %u heads are weak", n_weak,
         n_heads);
}

/* Sinks take a part of each softmax before and after, and logits are capped. */
Test(sequence_fit, sinks_and_capped_logits_count) {
  test_model* m =
      Model("snapkv:budget=50,window=8,fit=values", 0, TEST_TOKEN_MAJOR);
  float sinks[2 * 4];
  for (int i = 0; i < 8; ++i) sinks[i] = 0.5f * (float)(i % 5) - 0.5f;
  m->layer.logit_softcap = 2;
  kvevict_geometry geometry = m->geometry;
  geometry.layers = &m->layer;
  geometry.sink_logits = sinks;
  geometry.sink_logits_len = 8;
  EXPECT_OK(test_model_go_on(m, "snapkv:budget=50,window=8,fit=values",
                             &geometry, NULL));
  test_model_step(m, 90);
  EvictAndCheck(m, sinks, "sinks");
  test_model_destroy(m);
}

/* The same bytes with any number of threads, and from run to run. */
Test(sequence_fit, threads_do_not_matter) {
  static const char* const kAll[] = {
      "snapkv:budget=30,window=16,fit=values",
      "knorm:budget=45,heads=adaptive,reference=12,fit=values",
      "keydiff:budget=45,heads=adaptive,reference=12,fit=bias-values"};
  for (int i = 0; i < 3; ++i) {
    test_cache* first[2] = {NULL, NULL};
    for (uint32_t n_threads = 1; n_threads < 5; ++n_threads) {
      test_model_spec spec = test_small_model(kAll[i]);
      spec.n_threads = n_threads;
      spec.n_companions = i == 2;
      test_model* m = test_model_create(&spec, (test_random){3});
      for (uint32_t l = 0; i == 2 && l < 2; ++l) {
        m->live[l]->companions[0].role = KVEVICT_ROLE_BIAS;
      }
      test_model_step(m, 90);
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      test_inputs inputs;
      if (i >= 1) test_model_give_reference(m, &inputs, &options);
      EXPECT_OK(test_model_evict(m, &options, NULL));
      for (uint32_t l = 0; l < 2; ++l) {
        if (n_threads == 1) {
          first[l] = test_cache_clone(m->live[l]);
        } else {
          test_expect_same_bytes(m->live[l], first[l], kAll[i]);
        }
      }
      test_model_destroy(m);
    }
    test_cache_destroy(first[0]);
    test_cache_destroy(first[1]);
  }
}

Test(sequence_fit, an_eviction_that_drops_nothing_changes_nothing) {
  test_model* m = test_model_of("snapkv:budget=60,window=8,fit=values", 5);
  test_model_step(m, 60);
  test_cache* before = test_cache_clone(m->live[0]);
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(test_model_evict(m, NULL, &report));
  cr_expect_eq(report.evicted, 0);
  cr_expect_eq(report.n_weak_fits, 0);
  test_expect_same_bytes(m->live[0], before, "nothing dropped");
  test_cache_destroy(before);
  test_model_destroy(m);
}

/* Layers that share a cache are fitted once, to the first one's queries. */
Test(sequence_fit, a_shared_cache_is_fitted_once) {
  test_cache* fitted[2];
  for (int shares = 0; shares < 2; ++shares) {
    test_model* m =
        test_model_of("streaming-llm:budget=40,reference=12,fit=values", 6);
    test_model_step(m, 80);
    if (shares) m->views[1] = m->views[0];
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    EXPECT_OK(test_model_evict(m, &options, &report));
    EXPECT(report.n_weak_fits == (shares ? 2u : 4u), "%u weak fits",
           report.n_weak_fits);
    fitted[shares] = test_cache_clone(m->live[0]);
    test_model_destroy(m);
  }
  test_expect_same_rows(fitted[1], fitted[0], 40, "shared");
  test_cache_destroy(fitted[0]);
  test_cache_destroy(fitted[1]);
}

/* ---- What is refused ---- */

Test(sequence_fit, policies_say_what_does_not_go_together) {
  static const struct {
    const char *text, *key, *why;
  } kRows[] = {
      {"knorm:fit=values", "fit values needs reference", "knorm has no window"},
      {"streaming-llm:fit=values", "fit values needs reference",
       "streaming-llm"},
      {"snapkv:fit=values,merge=values", "fit values", "merge"},
      {"snapkv:fit=values,rotate=yes", "fit values", "rotate yes"},
      {"knorm:reference=4", "reference 4 without fit", "knorm"},
      {"snapkv:fit=bias", "fit=\"bias\"", "none|values|bias-values"},
      {"knorm:fit=bias-values", "fit values needs reference", "no window"},
      {"snapkv:fit_ridge=0", "fit_ridge=\"0\"", "a number in (0"}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    kvevict_policy* policy = NULL;
    EXPECT_INVALID(kvevict_policy_create(kRows[i].text, &policy), kRows[i].key,
                   kRows[i].why);
  }
}

Test(sequence_fit, policies_say_what_fitting_needs) {
  static const struct {
    const char* text;
    kvevict_need rows, queries, reference;
  } kRows[] = {{"snapkv:fit=values", KVEVICT_NEED_REQUIRED,
                KVEVICT_NEED_REQUIRED, KVEVICT_NEED_NONE},
               {"snapkv:reference=4,fit=values", KVEVICT_NEED_REQUIRED,
                KVEVICT_NEED_NONE, KVEVICT_NEED_REQUIRED},
               {"random:reference=4,fit=values", KVEVICT_NEED_REQUIRED,
                KVEVICT_NEED_NONE, KVEVICT_NEED_REQUIRED},
               {"random:fit=none", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE,
                KVEVICT_NEED_NONE}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    const kvevict_policy* policy = test_policy(kRows[i].text);
    const struct {
      kvevict_input input;
      kvevict_need need;
    } kNeeds[] = {{KVEVICT_INPUT_KEYS, kRows[i].rows},
                  {KVEVICT_INPUT_VALUES, kRows[i].rows},
                  {KVEVICT_INPUT_QUERIES, kRows[i].queries},
                  {KVEVICT_INPUT_REFERENCE_QUERIES, kRows[i].reference}};
    for (int j = 0; j < 4; ++j) {
      kvevict_need need = -1;
      EXPECT_OK(kvevict_policy_need(policy, kNeeds[j].input, &need));
      cr_expect_eq(need, kNeeds[j].need, "%s: input %d", kRows[i].text,
                   kNeeds[j].input);
    }
  }
}

Test(sequence_fit, rows_that_cannot_be_read_are_refused) {
  const char* const policy = "streaming-llm:budget=40,reference=6,fit=values";
  test_expect_reads(policy, KVEVICT_DTYPE_F16, 8, NULL, "");
  test_expect_reads(policy, KVEVICT_DTYPE_OPAQUE, 8, "cannot fit values",
                    "k_dtype");
  test_expect_reads(policy, KVEVICT_DTYPE_I8, 8, "cannot fit values",
                    "fits take keys of f32");
  test_expect_reads(policy, KVEVICT_DTYPE_F16, 0, "cannot fit values",
                    "v_head_dim");
}

Test(sequence_fit, evictions_say_what_is_missing) {
  test_model_spec spec =
      test_small_model("keydiff:sink=0,budget=40,reference=5,fit=values");
  spec.has_destinations = 1;
  test_model* m = test_model_create(&spec, (test_random){8});
  test_model_append(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "reference_queries is NULL", "reference 5");
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_model_give_reference(m, &inputs, &options);
  inputs.inputs[1].n_reference_rows = 4;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "n_reference_rows 4");
  inputs.inputs[1].n_reference_rows = 5;
  options.destinations = m->views;
  options.destinations_len = 2;
  EXPECT_INVALID(test_model_evict(m, &options, NULL),
                 "destinations with fit=values");
  options.destinations = NULL;
  options.destinations_len = 0;
  static uint8_t undo[1 << 20] __attribute__((aligned(64)));
  options.undo = undo;
  options.undo_bytes = sizeof undo;
  EXPECT_FAILS(test_model_evict(m, &options, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "undo", "fit=values");
  cr_expect_eq(test_model_stored(m, 0), 80);
  test_model_check(m, "after errors");
  test_model_destroy(m);
}

/* Four query heads of two KV heads: twice as many queries as the policy names. */
Test(sequence_fit, too_many_queries_are_refused) {
  for (int over = 0; over < 2; ++over) {
    test_model* m = test_model_of("knorm:budget=40", 9);
    kvevict_plan* plan = NULL;
    const kvevict_policy* policy =
        test_policy(over ? "knorm:budget=40,reference=2049,fit=values"
                         : "knorm:budget=40,reference=2048,fit=values");
    const kvevict_status status =
        kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan);
    EXPECT((status == KVEVICT_OK) == !over, "%d", status);
    if (over) {
      EXPECT_INVALID(
          kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan),
          "layer 0", "2049 queries of each of 2 query heads: 4098 > 4096");
    }
    kvevict_plan_destroy(plan);
    test_model_destroy(m);
  }
}

/* Rows that were fitted are no longer those of their tokens. */
Test(sequence_fit, exact_prefixes_end_with_a_fit) {
  test_model* m = test_model_of(
      "streaming-llm:budget=60,sink=20,reference=6,fit=values", 10);
  test_model_step(m, 90);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_model_give_reference(m, &inputs, &options);
  EXPECT_OK(test_model_evict(m, &options, NULL));
  uint32_t length = 1;
  EXPECT_OK(kvevict_sequence_exact_prefix(m->sequence, &length));
  cr_expect_eq(length, 0);
  test_model_destroy(m);
}
