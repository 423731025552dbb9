/* Weights of tokens change scores of kvevict_score() and of evictions. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/select.h"

enum { kMost = 100, kHeads = 2, kWindow = 8 };

static float caller[TEST_MAX_LAYERS][kHeads * kMost];
static float weights[TEST_MAX_LAYERS][kHeads * kMost];
static kvevict_plane planes[TEST_MAX_LAYERS][3];

/* Multiples of 1/64, some of them equal. */
static void DrawInputs(test_random* random) {
  for (int l = 0; l < TEST_MAX_LAYERS; ++l) {
    for (int i = 0; i < kHeads * kMost; ++i) {
      caller[l][i] = (float)test_random_below(random, 640) / 64.0f - 3.0f;
      weights[l][i] = (float)test_random_below(random, 640) / 64.0f - 1.0f;
    }
  }
}

/* Inputs of n slots of a layer; the queries are the last ones. */
static kvevict_signal_inputs InputsOf(const test_model* m, uint32_t l,
                                      uint32_t n) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  planes[l][0] = test_model_queries(m, l, m->n_seen - kWindow);
  planes[l][1] = test_floats_plane(caller[l], n);
  planes[l][2] = test_floats_plane(weights[l], n);
  inputs.queries = &planes[l][0];
  inputs.scores = &planes[l][1];
  inputs.token_weights = &planes[l][2];
  return inputs;
}

/* Scores what the model's layer holds, by a policy on the model's geometry. */
static kvevict_status Score(const test_model* m, const char* text, uint32_t l,
                            const uint32_t* counts,
                            const kvevict_signal_inputs* inputs,
                            float* scores) {
  const kvevict_policy* policy = test_policy(text);
  const uint32_t n = test_model_stored(m, l);
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan));
  const kvevict_workspace size =
      test_workspace(plan, KVEVICT_OPERATION_SCORE, n);
  void* workspace = aligned_alloc(64, (size.best_bytes + 127) / 64 * 64);
  kvevict_score_job job =
      test_score_job(n, &m->views[l], inputs, scores, kHeads);
  job.layer = l;
  job.token_counts = counts;
  const kvevict_status status =
      kvevict_score(plan, &job, 1, workspace, size.best_bytes, NULL);
  free(workspace);
  kvevict_plan_destroy(plan);
  return status;
}

static double NormOf(const test_model* m, uint32_t l, uint32_t head,
                     uint32_t slot) {
  const kvevict_view* view = &m->views[l];
  const uint32_t size = test_element_bytes(view->v.dtype);
  double sum = 0.0;
  for (uint32_t e = 0; e < view->v.head_dim; ++e) {
    uint8_t element[4];
    for (uint32_t b = 0; b < size; ++b) {
      element[b] = *oracle_row_byte(view, &view->v, slot, head, e * size + b);
    }
    const double v = test_load(view->v.dtype, element);
    sum += v * v;
  }
  return sqrt(sum);
}

/* Two f32 operations round, and a norm rounds v_head_dim / 16 + 6 times. */
static void ExpectWeighed(const test_model* m, uint32_t l, bool by_norms,
                          double epsilon, const uint32_t* counts,
                          const float* plain, const float* weighed,
                          const char* what) {
  const uint32_t n = test_model_stored(m, l);
  uint32_t n_finite = 0;
  for (uint32_t h = 0; h < kHeads; ++h) {
    for (uint32_t t = 0; t < (counts == NULL ? n : counts[h]); ++t) {
      const float s = plain[h * n + t], got = weighed[h * n + t];
      if (s == INFINITY) {
        EXPECT(got == s, "%s: head %u, token %u is forced no more", what, h, t);
        continue;
      }
      const double weight =
          by_norms ? NormOf(m, l, h, t) : (double)weights[l][h * n + t];
      const double want = ((double)s + epsilon) * weight;
      const double most =
          fabs(want) * (m->spec.v_head_dim / 16.0 + 9) * 0x1p-24;
      EXPECT(fabs(got - want) <= most,
             "%s: head %u, token %u: %.9g by %.9g is %.9g, not %.9g", what, h,
             t, (double)s, weight, (double)got, want);
      ++n_finite;
    }
  }
  EXPECT(n_finite > 0, "%s: nothing to weigh", what);
}

static const char* const kSignals[] = {
    "custom:sink=0",
    "custom:sink=0,pool=avg5",
    "random:sink=0,seed=3",
    "knorm:sink=0,pool=max3",
    "snapkv:window=8",
    "snapkv:window=8,keep_window=no",
    "snapkv:window=8,pool=max5,order=pool-reduce,group=sum"};
enum { kNSignals = sizeof kSignals / sizeof kSignals[0] };

static test_model* Model(const char* policy, kvevict_dtype dtype,
                         test_layout layout, test_random* random) {
  test_model_spec spec = test_small_model(policy);
  spec.k_dtype = dtype;
  spec.layout = layout;
  spec.v_head_dim = test_random_between(random, 1, 40);
  spec.n_threads = test_random_between(random, 1, 3);
  return test_model_create(&spec, *random);
}

static kvevict_dtype DrawDType(test_random* random) {
  static const kvevict_dtype kDTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                          KVEVICT_DTYPE_BF16};
  return kDTypes[test_random_below(random, 3)];
}

Test(score_weights, multiply_shaped_scores) {
  static float plain[kHeads * kMost], weighed[kHeads * kMost];
  test_random random = test_random_start("score weights");
  for (int trial = 0; trial < 60; ++trial) {
    DrawInputs(&random);
    test_model* m = Model("custom:sink=0,budget=50", DrawDType(&random),
                          (test_layout)(trial % TEST_N_LAYOUTS), &random);
    test_model_append(m, test_random_between(&random, kWindow, kMost));
    const uint32_t n = m->n_seen, l = (uint32_t)trial % 2;
    uint32_t counts[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      counts[h] = test_random_between(&random, kWindow, n);
    }
    const uint32_t* given = test_random_coin(&random) ? counts : NULL;
    const kvevict_signal_inputs inputs = InputsOf(m, l, n);
    for (int p = 0; p < kNSignals; ++p) {
      char text[160];
      EXPECT_OK(Score(m, kSignals[p], l, given, &inputs, plain));
      for (int way = 0; way < 3; ++way) {
        snprintf(text, sizeof text, "%s,weight=%s,epsilon=%s", kSignals[p],
                 way == 0 ? "given" : "norm", way == 1 ? "0.125" : "0");
        GUARD(weighed);
        EXPECT_OK(Score(m, text, l, given, &inputs, weighed));
        ExpectWeighed(m, l, way > 0, way == 1 ? 0.125 : 0.0, given, plain,
                      weighed, text);
        EXPECT(test_is_filled(weighed + kHeads * n,
                              sizeof weighed - kHeads * n * sizeof *weighed),
               "%s: wrote beyond the scores", text);
      }
    }
    test_model_destroy(m);
  }
}

/* An eviction chooses by the scores that kvevict_score() gives. */
static void EvictTwice(const char* text, const uint32_t* budgets,
                       test_random* random) {
  test_model_spec spec = test_small_model(text);
  spec.k_dtype = DrawDType(random);
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  if (budgets != NULL) spec.layout = TEST_TOKEN_MAJOR;
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, *random);
  for (int round = 0; round < 2; ++round) {
    test_model_step(m, round == 0 ? 90 : 15);
    DrawInputs(random);
    kvevict_signal_inputs inputs[2];
    static float scores[2][kHeads * kMost], combined[2][kHeads * kMost];
    int32_t before[2][kHeads][kMost], want[kMost], got[kMost];
    uint32_t n_before[2][kHeads];
    for (uint32_t l = 0; l < 2; ++l) {
      const uint32_t n = test_model_stored(m, l);
      inputs[l] = InputsOf(m, l, n);
      for (uint32_t h = 0; h < kHeads; ++h) {
        n_before[l][h] = test_model_stored_of(m, l, h);
        test_model_positions(m, l, h, before[l][h]);
      }
      EXPECT_OK(Score(m, text, l, n_before[l], &inputs[l], scores[l]));
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = inputs;
    options.inputs_len = 2;
    EXPECT_OK(test_model_evict(m, &options, NULL));
    for (uint32_t l = 0; l < 2; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const uint32_t n = n_before[l][h], keep = test_model_stored_of(m, l, h);
        /* Rows are as far apart as the longest head was long. */
        const uint32_t longest =
            n_before[l][0] > n_before[l][1] ? n_before[l][0] : n_before[l][1];
        const float* row = scores[l] + h * longest;
        uint8_t forced[kMost] = {0};
        if (m->policy.scope == KVEVICT_SCOPE_LAYER) {
          oracle_combine(scores[l], kHeads, n, m->policy.over, combined[l]);
          row = combined[l];
        } else if (m->policy.scope == KVEVICT_SCOPE_MODEL) {
          static float rows[2 * kHeads * kMost];
          memcpy(rows, scores[0], kHeads * n * sizeof(float));
          memcpy(rows + kHeads * n, scores[1], kHeads * n * sizeof(float));
          oracle_combine(rows, 2 * kHeads, n, m->policy.over, combined[l]);
          row = combined[l];
        }
        for (uint32_t i = 0; i < n; ++i) {
          forced[i] = i < m->policy.sink || i + m->policy.recent >= n ||
                      (m->policy.kind == ORACLE_SNAPKV && i + kWindow >= n);
        }
        oracle_select(row, n, keep, forced, m->policy.tie, want);
        test_model_positions(m, l, h, got);
        for (uint32_t i = 0; i < keep; ++i) {
          EXPECT(got[i] == before[l][h][want[i]],
                 "%s: round %d, layer %u, head %u: place %u is %d, not %d",
                 text, round, l, h, i, got[i], before[l][h][want[i]]);
        }
      }
    }
    test_model_check(m, text);
  }
  test_model_destroy(m);
}

Test(score_weights, are_what_evictions_choose_by) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=40,weight=norm,epsilon=4",
      "custom:sink=0,budget=40,weight=given,recent=3",
      "custom:sink=0,budget=40,weight=norm,scope=layer,over=max",
      "custom:sink=0,budget=40,weight=given,scope=model,over=sum",
      "knorm:budget=40,weight=norm,sink=2",
      "snapkv:budget=40,window=8,weight=norm",
      "snapkv:budget=40,window=8,weight=given,pool=max5,order=pool-reduce",
      "snapkv:budget=40,window=8,weight=norm,scope=model",
      "custom:sink=0,budget=40,redundancy=0.5,similarity=0.1",
      "custom:sink=0,budget=40,weight=given,redundancy=0.9,scope=layer"};
  static const uint32_t kBudgets[] = {40, 23, 31, 70};
  test_random random = test_random_start("evict by weights");
  for (int trial = 0; trial < 6; ++trial) {
    for (size_t p = 0; p < sizeof kPolicies / sizeof kPolicies[0]; ++p) {
      EvictTwice(kPolicies[p], NULL, &random);
      if (strstr(kPolicies[p], "scope") != NULL) continue;
      EvictTwice(kPolicies[p], kBudgets, &random);
    }
  }
}

Test(score_weights, of_the_caller_are_checked) {
  static float scores[kHeads * kMost];
  test_random random = test_random_start("weights, errors");
  test_model* m = Model("custom:sink=0,budget=20,weight=given",
                        KVEVICT_DTYPE_F32, TEST_TOKEN_MAJOR, &random);
  test_model_append(m, 50);
  DrawInputs(&random);
  kvevict_signal_inputs inputs[2] = {InputsOf(m, 0, 50), InputsOf(m, 1, 50)};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs;
  options.inputs_len = 2;
  inputs[1].token_weights = NULL;
  EXPECT_INVALID(
      Score(m, "random:sink=0,weight=given", 1, NULL, &inputs[1], scores),
      "token_weights", "NULL", "weight=given");
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "token_weights", "NULL");
  inputs[1].token_weights = &planes[1][2];
  planes[1][2].head_dim = 2;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "token_weights.head_dim 2");
  EXPECT_OK(Score(m, "random", 1, NULL, &inputs[1], scores));
  EXPECT_OK(Score(m, "random:sink=0,weight=norm", 1, NULL, &inputs[1], scores));
  planes[1][2].head_dim = 1;
  planes[1][2].data += 2;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "token_weights.data");
  planes[1][2].data -= 2;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_destroy(m);
}

/* Norms need values. Keys are needed only if the signal reads them. */
Test(score_weights, by_norms_need_values) {
  static float scores[kHeads * kMost];
  test_random random = test_random_start("weights without values");
  test_model* m = Model("custom:sink=0,budget=20,weight=norm",
                        KVEVICT_DTYPE_F32, TEST_TOKEN_MAJOR, &random);
  test_model_append(m, 50);
  DrawInputs(&random);
  const kvevict_signal_inputs inputs = InputsOf(m, 0, 50);
  const kvevict_plane values = m->views[0].v, keys = m->views[0].k;
  const uint32_t v_head_dim = m->layer.v_head_dim;
  const uint32_t k_head_dim = m->layer.k_head_dim;
  memset(&m->views[0].v, 0, sizeof values);
  EXPECT_INVALID(
      Score(m, "custom:sink=0,weight=norm", 0, NULL, &inputs, scores),
      "v.data is 0");
  EXPECT_OK(Score(m, "custom:sink=0,weight=given", 0, NULL, &inputs, scores));
  m->views[0].v = values;

  m->layer.v_head_dim = 0;
  cr_assert_eq(Score(m, "knorm:sink=0,weight=norm", 0, NULL, &inputs, scores),
               KVEVICT_ERROR_UNSUPPORTED);
  cr_assert(strstr(kvevict_last_error_message(), "v_head_dim is 0") != NULL);
  m->layer.v_head_dim = v_head_dim;

  m->layer.k_dtype = KVEVICT_DTYPE_OPAQUE;
  m->layer.k_head_dim = 0;
  memset(&m->views[0].k, 0, sizeof keys);
  EXPECT_OK(Score(m, "custom:sink=0,weight=norm", 0, NULL, &inputs, scores));
  m->views[0].k = keys;
  cr_assert_eq(Score(m, "knorm:sink=0,weight=norm", 0, NULL, &inputs, scores),
               KVEVICT_ERROR_UNSUPPORTED);
  cr_assert(strstr(kvevict_last_error_message(), "k_dtype") != NULL);
  m->layer.k_dtype = KVEVICT_DTYPE_F32;
  m->layer.k_head_dim = k_head_dim;
  test_model_destroy(m);
}
