/* kvevict_score() of several layers. */
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/mixed.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kTokens = TEST_MIXED_TOKENS, kHeads = TEST_MIXED_HEADS, kMaxJobs = 12 };

/* Jobs for layers of a mixed model, some of them twice with other lengths. */
typedef struct jobs {
  size_t n;
  kvevict_score_job jobs[kMaxJobs];
  kvevict_signal_inputs inputs[kMaxJobs];
  kvevict_plane queries[kMaxJobs], given[kMaxJobs], sums[kMaxJobs],
      filters[kMaxJobs], statistics[kMaxJobs][3];
  uint32_t counts[kMaxJobs][kHeads];
  float scores[kMaxJobs][kHeads * kTokens];
  float caller[kMaxJobs][3 * kHeads * kTokens];
} jobs;

static void DrawJob(const test_mixed* m, uint32_t layer, test_random* random,
                    jobs* all) {
  const size_t i = all->n++;
  const test_model* alike = m->alike[layer];
  const uint32_t window = alike->policy.window;
  const uint32_t n = test_random_between(random, window, kTokens);
  const uint32_t heads = m->layers[layer].n_kv_heads;
  for (uint32_t h = 0; h < kHeads; ++h) {
    all->counts[i][h] = test_random_between(random, window, n);
  }
  for (uint32_t k = 0; k < 3 * kHeads * kTokens; ++k) {
    all->caller[i][k] = (float)test_random_unit(random);
  }
  all->queries[i] = test_model_queries(alike, layer, n - window);
  all->given[i] = test_floats_plane(all->caller[i], kTokens);
  all->filters[i] = test_floats_plane(all->caller[i], kTokens);
  all->filters[i].head_dim = m->layers[layer].k_head_dim;
  all->inputs[i] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  all->inputs[i].queries = &all->queries[i];
  all->inputs[i].scores = &all->given[i];
  test_give_statistics(&m->layers[layer], layer, kTokens, all->statistics[i],
                       &all->inputs[i]);
  all->sums[i] = test_floats_plane(all->caller[i],
                                   test_random_between(random, n, kTokens));
  all->inputs[i].attention_sums = &all->sums[i];
  all->inputs[i].n_sum_heads = test_random_coin(random) ? heads : 0;
  all->inputs[i].key_filter = &all->filters[i];
  kvevict_score_job* job = &all->jobs[i];
  *job = (kvevict_score_job)KVEVICT_SCORE_JOB_INIT;
  job->layer = layer;
  job->n_tokens = n;
  job->token_counts = test_random_below(random, 4) == 0 ? all->counts[i] : NULL;
  job->view = &m->views[layer];
  job->inputs = &all->inputs[i];
  job->scores = all->scores[i];
  job->scores_len = (size_t)heads * n;
}

static jobs* DrawJobs(const test_mixed* m, test_random* random) {
  jobs* all = calloc(1, sizeof *all);
  for (uint32_t l = 0; l < m->n_layers; ++l) {
    if (m->alike[l] == NULL) continue;
    DrawJob(m, l, random, all);
    if (test_random_coin(random)) DrawJob(m, l, random, all);
  }
  memset(all->scores, TEST_GUARD, sizeof all->scores);
  return all;
}

/* Compares what heads hold. The rest of a row is unspecified. */
static void ExpectSame(const test_mixed* m, const jobs* a,
                       float (*b)[kHeads * kTokens], const char* what) {
  for (size_t i = 0; i < a->n; ++i) {
    const kvevict_score_job* job = &a->jobs[i];
    const uint32_t heads = m->layers[job->layer].n_kv_heads;
    for (uint32_t h = 0; h < heads; ++h) {
      const uint32_t n =
          job->token_counts == NULL ? job->n_tokens : job->token_counts[h];
      EXPECT(memcmp(a->scores[i] + h * job->n_tokens, b[i] + h * job->n_tokens,
                    n * sizeof(float)) == 0,
             "%s: job %zu, layer %u, head %u: other scores", what, i,
             job->layer, h);
    }
    const size_t end = (size_t)heads * job->n_tokens;
    EXPECT(test_is_filled(a->scores[i] + end,
                          (kHeads * kTokens - end) * sizeof(float)),
           "%s: job %zu wrote beyond its scores", what, i);
  }
}

Test(score_jobs, in_one_call_are_like_one_by_one_in_any_workspace) {
  static const char* const kScoring[] = {
      "snapkv:window=4",
      "snapkv:window=4,pool=max5,order=pool-reduce",
      "snapkv:window=3,group=max,keep_window=no",
      "knorm",
      "knorm:sink=0,pool=avg5",
      "lagkv:block=7",
      "lagkv:block=7,ranks=no",
      "h2o",
      "h2o:rows=mean,group=max,pool=avg5,order=pool-reduce",
      "cur",
      "keydiff",
      "keydiff:sink=0,budget=0.3,block=5",
      "q-filter",
      "random:sink=0,seed=3",
      "custom",
      "custom:sink=0,pool=avg5",
      "custom:sink=0,pool=max3",
      "custom:sink=0,weight=given",
      "snapkv:window=4,weight=given,epsilon=0.5",
      "r-kv:window=4",
      "custom:sink=0,weight=given,redundancy=0.5",
      "expected-attention:weight=none",
      "expected-attention:weight=given,group=max,sink=1",
      "expected-attention:weight=given,pool=max5,order=pool-reduce"};
  test_random random = test_random_start("score jobs");
  static float one_by_one[kMaxJobs][kHeads * kTokens];
  for (size_t p = 0; p < sizeof kScoring / sizeof kScoring[0]; ++p) {
    for (int trial = 0; trial < 8; ++trial) {
      test_mixed* m = test_mixed_draw_for(kScoring[p], &random, false);
      test_mixed_open(m, kScoring[p], NULL, &random);
      test_mixed_append(m, kTokens);
      jobs* all = DrawJobs(m, &random);
      const kvevict_workspace size =
          test_workspace(m->plan, KVEVICT_OPERATION_SCORE, kTokens);
      uint8_t* memory =
          aligned_alloc(64, (size.best_bytes + 64 + 63) / 64 * 64);
      for (size_t i = 0; i < all->n; ++i) {
        EXPECT_OK(kvevict_score(m->plan, &all->jobs[i], 1, memory,
                                size.best_bytes, NULL));
      }
      memcpy(one_by_one, all->scores, sizeof one_by_one);
      for (int step = 0; step <= 4; ++step) {
        const size_t bytes =
            size.least_bytes +
            (size.best_bytes - size.least_bytes) * (size_t)step / 4;
        memset(all->scores, TEST_GUARD, sizeof all->scores);
        memset(memory, TEST_GUARD, size.best_bytes + 64);
        EXPECT_OK(kvevict_score(m->plan, all->jobs, all->n,
                                bytes == 0 ? NULL : memory, bytes, NULL));
        EXPECT(test_is_filled(memory + bytes, 64),
               "%s: wrote beyond a workspace of %zu bytes", kScoring[p], bytes);
        ExpectSame(m, all, one_by_one, kScoring[p]);
      }
      free(memory);
      free(all);
      test_mixed_destroy(m);
    }
  }
}

static test_plan* Plan(const char* policy, uint32_t n_layers) {
  const kvevict_layer_geometry layer = test_layer(2, 2, 4, 0);
  const kvevict_geometry geometry = test_geometry(n_layers, 40, &layer);
  return test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
}

Test(score_jobs, are_up_to_as_many_as_a_call_takes) {
  static float scores[KVEVICT_MAX_JOBS][2 * 40], expected[2 * 40];
  static kvevict_score_job jobs[KVEVICT_MAX_JOBS];
  test_plan* p = Plan("random:sink=0,budget=5", KVEVICT_MAX_JOBS);
  for (uint32_t l = 0; l < KVEVICT_MAX_JOBS; ++l) {
    jobs[l] = (kvevict_score_job)KVEVICT_SCORE_JOB_INIT;
    jobs[l].layer = l;
    jobs[l].n_tokens = 40;
    jobs[l].scores = scores[l];
    jobs[l].scores_len = 80;
  }
  EXPECT_OK(kvevict_score(p->plan, NULL, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_score(p->plan, jobs, 0, NULL, 0, NULL));
  EXPECT_OK(test_score_jobs(p, jobs, KVEVICT_MAX_JOBS));
  for (uint32_t l = 0; l < KVEVICT_MAX_JOBS; l += 9) {
    kvevict_score_job one = jobs[l];
    one.scores = expected;
    EXPECT_OK(test_score_jobs(p, &one, 1));
    EXPECT(memcmp(expected, scores[l], sizeof expected) == 0, "layer %u", l);
  }
  test_plan_destroy(p);
}
