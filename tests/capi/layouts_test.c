/* Every layout scores as a contiguous cache does, to the bit. Evictions work in
 * all of them. */
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/undo.h"

TestSuite(layouts);

/* ---- Scores ---- */

enum { kHeads = 2, kQueryHeads = 4, kTokens = 91, kWindow = 8, kPairs = 5 };
enum { kMostDim = 40 };

/* Each signal and each option that reads keys or values. */
static const struct {
  const char* policy;
  bool has_all_queries; /* queries of all slots, not only a window's */
} kSignals[] = {
    {"snapkv:window=8", false},
    {"snapkv:window=8,softmax=past,over=max", false},
    {"tova", false},
    {"r-kv:window=8", false},
    {"cake:window=8", false},
    {"h2o", true},
    {"non-causal:block=16", true},
    {"knorm", false},
    {"keydiff", false},
    {"keydiff:block=16", false},
    {"q-filter", false},
    {"lagkv:block=16", false},
    {"cur", false},
    {"expected-attention", false},
    {"triattention", false},
    {"random:weight=norm", false},
    {"random:weight=given,redundancy=0.5", false},
};

/* Inputs that are not in the cache. */
typedef struct numbers {
  float queries[kQueryHeads * kTokens * kMostDim];
  float others[kQueryHeads * kMostDim * kMostDim];
} numbers;

static kvevict_plane Rows(const float* first, uint32_t n_rows, uint32_t dim) {
  kvevict_plane plane = test_floats_plane(first, (uint64_t)n_rows * dim);
  plane.head_dim = dim;
  plane.token_stride_bytes = (int64_t)(dim * sizeof(float));
  return plane;
}

/* Scores [n_heads, n_tokens] of a cache by a plan. */
static void Score(const test_plan* plan, const test_cache* cache,
                  const numbers* n, bool all_queries, float* scores) {
  const uint32_t dim = cache->spec.k_head_dim;
  const uint32_t n_rows = all_queries ? kTokens : plan->policy.window;
  const kvevict_plane queries = Rows(n->queries, n_rows, dim);
  const kvevict_plane mean = Rows(n->others, 1, dim);
  const kvevict_plane covariance = Rows(n->others, dim, dim);
  const kvevict_plane centers = Rows(n->others, 3, kPairs);
  const kvevict_plane weights = test_floats_plane(n->others, kTokens);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &queries;
  inputs.query_mean = inputs.key_filter = &mean;
  inputs.query_covariance = &covariance;
  inputs.query_centers = &centers;
  inputs.token_weights = &weights;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = kTokens;
  job.view = &cache->view;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = kHeads * kTokens;
  EXPECT_OK(kvevict_score(plan->plan, &job, 1, plan->workspace,
                          plan->workspace_bytes, NULL));
  test_plan_check(plan);
}

static void TrySignal(const char* policy, bool all_queries, kvevict_dtype dtype,
                      uint32_t dim, test_random* random) {
  numbers* n = malloc(sizeof *n);
  float* const all = (float*)n;
  for (size_t i = 0; i < sizeof *n / sizeof(float); ++i) {
    all[i] = test_random_normal(random);
  }
  float inv_freq[kPairs];
  for (int f = 0; f < kPairs; ++f) inv_freq[f] = 1.0f / (float)(1 + 3 * f);
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, dim, dim - 3);
  layer.k_dtype = layer.v_dtype = dtype;
  kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  geometry.rope_inv_freq = inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  geometry.rope_layout = (kvevict_rope_layout)test_random_below(random, 2);
  test_plan* plan =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  test_cache_spec spec = {TEST_TOKEN_MAJOR, kHeads, kTokens, dtype, dim, dtype,
                          dim - 3,          0};
  test_cache* flat = test_cache_create(&spec, random);
  float expected[kHeads * kTokens];
  Score(plan, flat, n, all_queries, expected);
  for (int layout = 1; layout < TEST_N_LAYOUTS; ++layout) {
    spec.layout = (test_layout)layout;
    test_cache* cache = test_cache_create(&spec, random);
    test_cache_copy_rows(cache, flat, kTokens);
    float scores[kHeads * kTokens];
    Score(plan, cache, n, all_queries, scores);
    for (int i = 0; i < kHeads * kTokens; ++i) {
      EXPECT(memcmp(&scores[i], &expected[i], sizeof(float)) == 0,
             "%s, %s, dtype %d, dim %u: score %d is %g, not %g", policy,
             test_layout_name(spec.layout), (int)dtype, dim, i,
             (double)scores[i], (double)expected[i]);
    }
    test_cache_destroy(cache);
  }
  test_cache_destroy(flat);
  test_plan_destroy(plan);
  free(n);
}

Test(layouts, score_as_a_contiguous_cache) {
  test_random random = test_random_start("layouts score");
  for (size_t i = 0; i < sizeof kSignals / sizeof kSignals[0]; ++i) {
    for (kvevict_dtype dtype = KVEVICT_DTYPE_F32; dtype <= KVEVICT_DTYPE_BF16;
         ++dtype) {
      /* Groups of one, whole groups, and groups within which a pair begins. */
      const uint32_t kDims[] = {19, 24, 32};
      for (int d = 0; d < 3; ++d) {
        TrySignal(kSignals[i].policy, kSignals[i].has_all_queries, dtype,
                  kDims[d], &random);
      }
    }
  }
}

/* ---- Evictions ---- */

static const char* const kPolicies[] = {
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

/* Evicts a model of caches of this layout three times, and takes the second one back. */
static test_model* Run(const char* policy, test_layout layout, bool undo) {
  test_model_spec spec = test_small_model(policy);
  spec.layout = layout;
  spec.n_layers = 2;
  spec.n_companions = 2;
  spec.n_threads = 1 + (uint32_t)layout % 3;
  test_model* m = test_model_create(&spec, (test_random){31});
  for (int round = 0; round < 3; ++round) {
    test_model_step(m, round == 0 ? 96 : 41);
    if (!undo) {
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      continue;
    }
    const test_lent lent = test_lend(test_undo_bytes(m));
    EXPECT_OK(test_evict_lending(m, lent, NULL));
    if (round == 1) {
      EXPECT_OK(test_undo(m, lent));
      EXPECT_OK(test_model_evict(m, NULL, NULL));
    }
    test_lent_return(lent);
  }
  return m;
}

Test(layouts, evict_as_a_contiguous_cache) {
  for (size_t i = 0; i < sizeof kPolicies / sizeof kPolicies[0]; ++i) {
    const bool undo = strstr(kPolicies[i], "merge") == NULL &&
                      strstr(kPolicies[i], "fit") == NULL;
    test_model* flat = Run(kPolicies[i], TEST_TOKEN_MAJOR, undo);
    for (int layout = 1; layout < TEST_N_LAYOUTS; ++layout) {
      char what[100];
      snprintf(what, sizeof what, "%s, %s", kPolicies[i],
               test_layout_name((test_layout)layout));
      test_model* m = Run(kPolicies[i], (test_layout)layout, undo);
      test_expect_same_tokens(flat, m, what);
      for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
        uint32_t ends[8];
        for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
          ends[h] = test_model_stored_of(m, l, h);
        }
        test_expect_same_rows_of_heads(flat->live[l], m->live[l], ends, what);
      }
      test_model_destroy(m);
    }
    test_model_destroy(flat);
  }
}
