/* Every policy that the library lists scores alike on every SIMD target, in every
 * layout and workspace, and for any number of threads: a new one needs no test of this
 * kind. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"

enum {
  kTokens = 75,
  kMaxDim = 68,
  kInputs = 12,
  kMaxHeads = 4,
  kReference = 5
};

typedef struct shape {
  uint32_t n_q_heads, n_kv_heads, head_dim;
  kvevict_dtype dtype;
} shape;

/* Rows of f32 in [-1, 1); the same for a policy on all targets. */
typedef struct given {
  float numbers[kMaxHeads * kMaxDim * kTokens];
  kvevict_plane planes[kInputs];
  kvevict_signal_inputs inputs;
} given;

static const float kFrequencies[kMaxDim / 2] = {1.0f, 0.5f, 0.25f, 0.125f};

/* Among the slots and behind them, in no order. */
static const int32_t kReferencePositions[kReference] = {20, 90, 3, 74, 40};

static void Give(given* g, const kvevict_policy* policy, const shape* s,
                 uint32_t n_query_rows, test_random* random) {
  for (size_t i = 0; i < sizeof g->numbers / sizeof *g->numbers; ++i) {
    g->numbers[i] = 2.0f * (float)test_random_unit(random) - 1.0f;
  }
  g->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  const struct {
    const kvevict_plane** place;
    uint32_t rows, dim;
  } each[kInputs] = {
      [KVEVICT_INPUT_QUERIES] = {&g->inputs.queries, n_query_rows, s->head_dim},
      [KVEVICT_INPUT_SCORES] = {&g->inputs.scores, kTokens, 1},
      [KVEVICT_INPUT_QUERY_MEAN] = {&g->inputs.query_mean, 1, s->head_dim},
      [KVEVICT_INPUT_QUERY_COVARIANCE] = {&g->inputs.query_covariance,
                                          s->head_dim, s->head_dim},
      [KVEVICT_INPUT_KEY_FILTER] = {&g->inputs.key_filter, 1, s->head_dim},
      [KVEVICT_INPUT_TOKEN_WEIGHTS] = {&g->inputs.token_weights, kTokens, 1},
      [KVEVICT_INPUT_QUERY_CENTERS] = {&g->inputs.query_centers, 3,
                                       s->head_dim / 2},
      [KVEVICT_INPUT_REFERENCE_QUERIES] = {&g->inputs.reference_queries,
                                           kReference, s->head_dim},
  };
  for (int i = 0; i < kInputs; ++i) {
    kvevict_need need = KVEVICT_NEED_NONE;
    EXPECT_OK(kvevict_policy_need(policy, (kvevict_input)i, &need));
    if (each[i].place == NULL || need == KVEVICT_NEED_NONE) continue;
    g->planes[i] = kvevict_plane_head_major(g->numbers, KVEVICT_DTYPE_F32,
                                            each[i].rows, each[i].dim);
    *each[i].place = &g->planes[i];
  }
  if (g->inputs.reference_queries != NULL) {
    g->inputs.n_reference_rows = kReference;
    g->inputs.reference_positions = kReferencePositions;
  }
}

/* The scores of one policy: [n_kv_heads, kTokens]. Several threads get the least
 * workspace, and one gets the best. */
static void Score(const char* policy, const shape* s, const char* target,
                  test_layout layout, uint32_t n_threads, float* scores) {
  test_random random = {s->head_dim};
  kvevict_layer_geometry layer =
      test_layer(s->n_q_heads, s->n_kv_heads, s->head_dim, s->head_dim - 3);
  layer.k_dtype = layer.v_dtype = s->dtype;
  kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  geometry.rope_inv_freq = kFrequencies;
  geometry.rope_inv_freq_len = s->head_dim / 2;
  test_plan* plan = test_plan_create_for(target, policy, &geometry,
                                         KVEVICT_OPERATION_SCORE, n_threads);
  test_cache_spec spec = {
      TEST_TOKEN_MAJOR, s->n_kv_heads, kTokens,         s->dtype,
      s->head_dim,      s->dtype,      s->head_dim - 3, 0};
  test_cache* rows = test_cache_create(&spec, &random);
  test_random other = {random.state ^ 5};
  spec.layout = layout;
  test_cache* cache = test_cache_create(&spec, &other);
  test_cache_copy_rows(cache, rows, kTokens);
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  EXPECT_OK(kvevict_policy_resolve(plan->policy_handle, kTokens, &resolved));
  const uint32_t n_rows =
      resolved.n_query_rows < kTokens ? resolved.n_query_rows : kTokens;
  static given g;
  Give(&g, plan->policy_handle, s, n_rows, &random);
  kvevict_score_job job =
      test_score_job(kTokens, &cache->view, &g.inputs, scores, s->n_kv_heads);
  if (n_threads > 1) {
    test_plan_shrink(
        plan, test_workspace(plan->plan, KVEVICT_OPERATION_SCORE, kTokens)
                  .least_bytes);
    test_plan_poison(plan, 0);
  }
  EXPECT_OK(test_score_jobs(plan, &job, 1));
  test_cache_destroy(cache);
  test_cache_destroy(rows);
  test_plan_destroy(plan);
}

/* Calls check with every policy that scores, and shapes with heads of whole and of
 * broken vectors, in groups of one, of whole ones and across pairs. */
static void ForEachPolicy(void (*check)(const char* policy, const shape* s)) {
  enum { kNShapes = 6 };
  static const shape kShapes[kNShapes] = {
      {4, 2, 64, KVEVICT_DTYPE_F32},  {2, 2, 68, KVEVICT_DTYPE_F16},
      {4, 1, 6, KVEVICT_DTYPE_BF16},  {3, 3, 32, KVEVICT_DTYPE_U8},
      {4, 2, 19, KVEVICT_DTYPE_BF16}, {4, 2, 24, KVEVICT_DTYPE_F32}};
  /* Numbers with which other parts of the kernels work. */
  static const char* const kMore[] = {
      "snapkv:window=8,softmax=past",
      "keydiff:block=16",
      "lagkv:block=16",
      "non-causal:block=16",
      "custom:draw=yes,weight=norm",
      "custom:pool=avg3,prior=mean,weight=given",
      "triattention:pool=avg3,order=pool-reduce"};
  for (size_t p = 0; p < sizeof kMore / sizeof *kMore; ++p) {
    for (int i = 0; i < kNShapes; ++i) check(kMore[p], &kShapes[i]);
  }
  kvevict_policy_info info = {.struct_size = sizeof info};
  int n = 0, n_with_reference = 0;
  for (uint32_t k = 0; kvevict_policy_at(k, &info) == KVEVICT_OK; ++k) {
    char pool[TEST_VALUE_TEXT], text[TEST_POLICY_TEXT];
    if (kvevict_policy_get(test_policy(info.name), "pool", pool, sizeof pool,
                           NULL) != KVEVICT_OK) {
      continue; /* it ranks nothing */
    }
    ++n;
    for (int i = 0; i < kNShapes; ++i) check(info.name, &kShapes[i]);
    snprintf(text, sizeof text, "%s:weight=given,redundancy=0.3", info.name);
    check(text, &kShapes[0]);
    snprintf(text, sizeof text,
             "%s:recent=9,standardize=yes,leverage=0.5,leverage_scale=evicted",
             info.name);
    check(text, &kShapes[1]);
    kvevict_policy* reference = NULL;
    snprintf(text, sizeof text, "%s:reference=%d,reference_weight=0.25",
             info.name, kReference);
    if (kvevict_policy_create(text, &reference) != KVEVICT_OK) continue;
    kvevict_policy_destroy(reference);
    ++n_with_reference;
    for (int i = 0; i < kNShapes; ++i) check(text, &kShapes[i]);
  }
  EXPECT(n > 10, "%d policies score", n);
  EXPECT(n_with_reference > 3, "%d policies take reference queries",
         n_with_reference);
}

/* Kinds whose sums have one order, whatever the vectors. */
static bool HasOneOrder(const char* policy) {
  static const char* const kKinds[] = {"custom",   "keydiff", "lagkv",
                                       "leverage", "random",  "q-filter"};
  for (size_t i = 0; i < sizeof kKinds / sizeof *kKinds; ++i) {
    const size_t n = strcspn(policy, ":");
    if (strlen(kKinds[i]) == n && strncmp(policy, kKinds[i], n) == 0) {
      return strstr(policy, "weight=norm") == NULL;
    }
  }
  return false;
}

/* Sums of the other kinds round otherwise with other vectors, and all do without fused
 * multiply-add. */
static void AlikeOnTargets(const char* policy, const shape* s) {
  float first[kMaxHeads * kTokens], scores[kMaxHeads * kTokens];
  const size_t n = (size_t)s->n_kv_heads * kTokens;
  const char* best = kvevict_simd_target_at(0);
  Score(policy, s, best, TEST_TOKEN_MAJOR, 1, first);
  const char* target;
  for (uint32_t t = 1; (target = kvevict_simd_target_at(t)) != NULL; ++t) {
    Score(policy, s, target, TEST_TOKEN_MAJOR, 1, scores);
    const bool is_exact =
        HasOneOrder(policy) && test_is_fused(target) && test_is_fused(best);
    EXPECT(!is_exact || memcmp(scores, first, n * sizeof *scores) == 0,
           "%s, %s beside %s, head size %u: other bits", policy, target, best,
           s->head_dim);
    float most = 0.0f;
    for (size_t i = 0; i < n; ++i) {
      if (isfinite(first[i])) most = fmaxf(most, fabsf(first[i]));
    }
    for (size_t i = 0; i < n; ++i) {
      const bool same = scores[i] == first[i];
      /* A few hundred roundings of numbers up to the largest score. */
      EXPECT(same || fabsf(scores[i] - first[i]) <= 3e-5f * most,
             "%s, %s beside %s, head size %u, score %zu: %.9g, not %.9g",
             policy, target, best, s->head_dim, i, (double)scores[i],
             (double)first[i]);
    }
  }
}

Test(score_every, policy_scores_alike_on_every_target) {
  ForEachPolicy(AlikeOnTargets);
}

static void AlikeInLayouts(const char* policy, const shape* s) {
  float first[kMaxHeads * kTokens], scores[kMaxHeads * kTokens];
  const size_t n_bytes = (size_t)s->n_kv_heads * kTokens * sizeof(float);
  Score(policy, s, NULL, TEST_TOKEN_MAJOR, 1, first);
  for (int layout = 1; layout < TEST_N_LAYOUTS; ++layout) {
    Score(policy, s, NULL, (test_layout)layout, 1, scores);
    EXPECT(memcmp(scores, first, n_bytes) == 0, "%s, %s, head size %u", policy,
           test_layout_name((test_layout)layout), s->head_dim);
  }
  Score(policy, s, NULL, TEST_HEAD_MAJOR, 3, scores);
  EXPECT(memcmp(scores, first, n_bytes) == 0, "%s, 3 threads, head size %u",
         policy, s->head_dim);
}

Test(score_every, policy_scores_alike_in_every_layout) {
  ForEachPolicy(AlikeInLayouts);
}
