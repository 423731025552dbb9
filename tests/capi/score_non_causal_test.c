/* Policy non-causal: attention within chunks. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/non_causal.h"
#include "tests/oracle/select.h"

enum { kHeads = 2, kValueDim = 5 };

typedef struct chunk_case {
  const char* policy;
  uint32_t group, n_tokens, head_dim;
  const uint32_t* counts;
} chunk_case;

/* The rows of a layer, head after head. */
typedef struct rows {
  float* numbers;
  kvevict_plane plane;
} rows;

static rows DrawRows(uint32_t n_heads, uint32_t n_tokens, uint32_t dim,
                     test_random* random) {
  rows r = {malloc(sizeof(float) * n_heads * n_tokens * dim),
            KVEVICT_PLANE_INIT};
  for (size_t i = 0; i < (size_t)n_heads * n_tokens * dim; ++i) {
    r.numbers[i] = 2.0f * (float)test_random_unit(random) - 1.0f;
  }
  r.plane =
      kvevict_plane_head_major(r.numbers, KVEVICT_DTYPE_F32, n_tokens, dim);
  return r;
}

typedef struct scene {
  chunk_case c;
  test_plan* plan;
  rows q, k, v;
  kvevict_view view;
  kvevict_signal_inputs inputs;
  kvevict_score_job job;
  float* scores; /* [kHeads, n_tokens] */
} scene;

static scene* MakeScene(const chunk_case* c, const char* target,
                        test_random* random) {
  scene* s = malloc(sizeof *s);
  const uint32_t n_q = kHeads * c->group;
  s->c = *c;
  s->q = DrawRows(n_q, c->n_tokens, c->head_dim, random);
  s->k = DrawRows(kHeads, c->n_tokens, c->head_dim, random);
  s->v = DrawRows(kHeads, c->n_tokens, kValueDim, random);
  const kvevict_layer_geometry layer =
      test_layer(n_q, kHeads, c->head_dim, kValueDim);
  const kvevict_geometry geometry = test_geometry(1, c->n_tokens, &layer);
  s->plan = test_plan_create_for(target, c->policy, &geometry,
                                 KVEVICT_OPERATION_SCORE, 2);
  s->view = (kvevict_view)KVEVICT_VIEW_INIT;
  s->view.n_kv_heads = kHeads;
  s->view.k = s->k.plane;
  s->view.v = s->v.plane;
  s->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  s->inputs.queries = &s->q.plane;
  s->scores = malloc(sizeof(float) * kHeads * c->n_tokens);
  s->job = test_score_job(c->n_tokens, &s->view, &s->inputs, s->scores, kHeads);
  s->job.token_counts = c->counts;
  return s;
}

static kvevict_status Score(const scene* s) {
  return test_score_jobs(s->plan, &s->job, 1);
}

static void FreeScene(scene* s) {
  test_plan_destroy(s->plan);
  free(s->q.numbers);
  free(s->k.numbers);
  free(s->v.numbers);
  free(s->scores);
  free(s);
}

static void OracleScores(const scene* s, uint32_t head, uint32_t n,
                         double* scores) {
  const chunk_case* c = &s->c;
  const oracle_policy* policy = &s->plan->policy;
  double* norms = malloc(sizeof(double) * n);
  for (uint32_t t = 0; t < n; ++t) {
    double sum = 0.0;
    for (uint32_t e = 0; e < kValueDim; ++e) {
      const double v =
          s->v.numbers[((size_t)head * c->n_tokens + t) * kValueDim + e];
      sum += v * v;
    }
    norms[t] = sqrt(sum);
  }
  /* Query heads are n_tokens rows apart, and the first n of each count. */
  const size_t row = sizeof(float) * c->head_dim;
  float* queries = malloc(c->group * n * row);
  for (uint32_t g = 0; g < c->group; ++g) {
    memcpy(queries + (size_t)g * n * c->head_dim,
           s->q.numbers +
               ((size_t)head * c->group + g) * c->n_tokens * c->head_dim,
           n * row);
  }
  const oracle_non_causal in = {
      c->group,
      n,
      c->head_dim,
      queries,
      s->k.numbers + (size_t)head * c->n_tokens * c->head_dim,
      policy->weight == ORACLE_WEIGHT_NORM ? norms : NULL};
  oracle_non_causal_scores(&in, policy, scores);
  free(norms);
  free(queries);
}

/* All terms are >= 0. A weight errs by a logit of up to head_dim, twice, as f32
 * sums with random signs, and 64 roundings more (tests/oracle/window_attention.cc).
 * Sums of rows, heads and neighbours and a norm follow. */
static void ExpectScores(const scene* s, const char* what) {
  const double dim = s->c.head_dim;
  const double bound = 0x1p-24 * (dim * (8.0 + 4.0 * sqrt(dim)) + 100.0 +
                                  sqrt(s->plan->policy.block) + s->c.group +
                                  s->plan->policy.pool_width);
  double* expected = malloc(sizeof(double) * s->c.n_tokens);
  for (uint32_t h = 0; h < kHeads; ++h) {
    const uint32_t n = s->c.counts == NULL ? s->c.n_tokens : s->c.counts[h];
    if (n == 0) continue;
    OracleScores(s, h, n, expected);
    for (uint32_t t = 0; t < n; ++t) {
      const double score = s->scores[(size_t)h * s->c.n_tokens + t];
      EXPECT(fabs(score - expected[t]) <= bound * expected[t],
             "%s, %s, group %u, head_dim %u: head %u, token %u of %u: %.9g, "
             "not %.9g",
             what, s->c.policy, s->c.group, s->c.head_dim, h, t, n, score,
             expected[t]);
    }
  }
  free(expected);
}

static const char* const kPolicies[] = {
    "non-causal",
    "non-causal:sink=0,block=64",
    "non-causal:sink=0,block=7,pool=none",
    "non-causal:sink=0,block=100,group=max,order=reduce-pool",
    "non-causal:sink=0,block=33,group=sum,weight=none,pool=max5,order=pool-"
    "reduce",
    "non-causal:sink=0,block=65536,epsilon=0.5,pool=avg7"};
enum { kNPolicies = sizeof kPolicies / sizeof kPolicies[0] };

Test(score_non_causal, matches_the_oracle) {
  static const uint32_t kTokens[] = {1, 2, 63, 65, 256, 257, 600};
  test_random random = test_random_start("score_non_causal");
  for (int p = 0; p < kNPolicies; ++p) {
    for (int i = 0; i < 7; ++i) {
      const chunk_case c = {kPolicies[p], 1 + 2 * ((uint32_t)(p + i) % 2),
                            kTokens[i], i % 2 == 0 ? 16 : 5, NULL};
      const char* target;
      for (uint32_t at = 0; (target = kvevict_simd_target_at(at)) != NULL;
           ++at) {
        if (at > 0 && kTokens[i] > 257) break;
        scene* s = MakeScene(&c, target, &random);
        test_plan_poison(s->plan, 0xFF);
        EXPECT_OK(Score(s));
        ExpectScores(s, target);
        /* Any workspace gives the same bytes. */
        float* before = malloc(sizeof(float) * s->job.scores_len);
        memcpy(before, s->scores, sizeof(float) * s->job.scores_len);
        test_plan_shrink(
            s->plan,
            test_workspace(s->plan->plan, KVEVICT_OPERATION_SCORE, c.n_tokens)
                .least_bytes);
        EXPECT_OK(Score(s));
        EXPECT(
            memcmp(before, s->scores, sizeof(float) * s->job.scores_len) == 0,
            "%s: other bits in the least workspace", c.policy);
        free(before);
        FreeScene(s);
      }
    }
  }
}

Test(score_non_causal, is_of_what_each_head_holds) {
  static const uint32_t kCounts[][kHeads] = {{100, 60}, {1, 100}, {0, 100}};
  test_random random = test_random_start("score_non_causal heads");
  for (int p = 0; p < kNPolicies; ++p) {
    for (int i = 0; i < 3; ++i) {
      const chunk_case c = {kPolicies[p], 2, 100, 8, kCounts[i]};
      scene* s = MakeScene(&c, NULL, &random);
      EXPECT_OK(Score(s));
      ExpectScores(s, "counts");
      FreeScene(s);
    }
  }
}

/* It does not use the geometry's scale. Log-sum-exps belong to another softmax. */
Test(score_non_causal, reads_no_scale_and_no_log_sum_exps) {
  test_random random = test_random_start("score_non_causal scale");
  const chunk_case c = {"non-causal:sink=0,block=20", 2, 50, 8, NULL};
  scene* s = MakeScene(&c, NULL, &random);
  test_plan_destroy(s->plan);
  kvevict_layer_geometry layer =
      test_layer(kHeads * c.group, kHeads, c.head_dim, kValueDim);
  layer.softmax_scale = 40.0f;
  const kvevict_geometry geometry = test_geometry(1, c.n_tokens, &layer);
  s->plan = test_plan_create(c.policy, &geometry, KVEVICT_OPERATION_SCORE, 2);
  float lse[kHeads * 2 * 50] = {0};
  const kvevict_plane plane = test_floats_plane(lse, 50);
  s->inputs.row_lse = &plane;
  EXPECT_OK(Score(s));
  ExpectScores(s, "another scale");
  FreeScene(s);
}

/* NaN or infinity in a key spoils its chunk, which pooling widens by a slot, and no
 * other head. */
Test(score_non_causal, keeps_nan_within_its_chunk) {
  test_random random = test_random_start("score_non_causal nan");
  const chunk_case c = {"non-causal:sink=0,block=20", 2, 70, 8, NULL};
  for (int i = 0; i < 2; ++i) {
    scene* s = MakeScene(&c, NULL, &random);
    s->k.numbers[(size_t)c.n_tokens * c.head_dim + 25 * c.head_dim + 3] =
        i == 0 ? NAN : INFINITY;
    EXPECT_OK(Score(s));
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 0; t < c.n_tokens; ++t) {
        const bool spoiled = h == 1 && t >= 19 && t <= 40;
        EXPECT(!!isnan(s->scores[h * c.n_tokens + t]) == spoiled,
               "head %u, token %u: %g", h, t,
               (double)s->scores[h * c.n_tokens + t]);
      }
    }
    FreeScene(s);
  }
}

Test(score_non_causal, with_what_is_missing_or_wrong_is_an_error) {
  test_random random = test_random_start("score_non_causal errors");
  const chunk_case c = {"non-causal:sink=0,block=20", 2, 40, 8, NULL};
  scene* s = MakeScene(&c, NULL, &random);
#define EXPECT_BREAKS(change, undo, ...)   \
  do {                                     \
    change;                                \
    EXPECT_INVALID(Score(s), __VA_ARGS__); \
    undo;                                  \
    EXPECT_OK(Score(s));                   \
  } while (0)
  EXPECT_BREAKS(s->inputs.queries = NULL, s->inputs.queries = &s->q.plane,
                "inputs.queries is NULL", "attention within chunks");
  EXPECT_BREAKS(s->inputs.n_query_rows = 39, s->inputs.n_query_rows = 40,
                "inputs.n_query_rows 39 is not 0 or 40 slots held");
  EXPECT_BREAKS(s->inputs.n_query_rows = 41, s->inputs.n_query_rows = 0,
                "inputs.n_query_rows 41 is not 0 or 40 slots held");
  EXPECT_BREAKS(s->view.k.data = 0, s->view.k = s->k.plane, "k.data is 0");
  EXPECT_BREAKS(s->view.v.data = 0, s->view.v = s->v.plane, "v.data is 0");
  EXPECT_BREAKS(s->job.view = NULL, s->job.view = &s->view, "view", "NULL");
#undef EXPECT_BREAKS
  FreeScene(s);
  static const char* const kWrong[][2] = {
      {"non-causal:sink=0,block=0", "block 0"},
      {"non-causal:sink=0,window=8", "window"},
      {"non-causal:sink=0,rows=mean", "rows"},
      {"non-causal:sink=0,softmax=past", "softmax"},
      {"non-causal:sink=0,order=reduce-logits,group=max",
       "no logits to reduce"}};
  for (size_t i = 0; i < sizeof kWrong / sizeof kWrong[0]; ++i) {
    EXPECT_NO_POLICY(kWrong[i][0], kWrong[i][1]);
  }
}
