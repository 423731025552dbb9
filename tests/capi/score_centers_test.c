/* kvevict_score() and evictions by triattention. The caller gives the centers of
 * the queries before RoPE, the geometry says how keys were rotated. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/query_centers.h"

enum {
  kLayers = 3,
  kHeads = 2,
  kGroup = 3,
  kQueryHeads = kHeads * kGroup,
  kTokens = 60,
  kDim = 24,
  kPairs = 10, /* the last four elements are not rotated */
  kStride = 3 * kPairs + 2
};

typedef struct model {
  float keys[kLayers][kHeads * kTokens * kDim];
  float centers[kLayers][kQueryHeads * kStride];
  float inv_freq[kPairs];
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
  kvevict_view views[kLayers];
  kvevict_plane planes[kLayers];
  kvevict_signal_inputs inputs[kLayers];
} model;

static model* DrawModel(kvevict_rope_layout layout) {
  test_random random = test_random_start("score centers");
  model* m = calloc(1, sizeof *m);
  for (int f = 0; f < kPairs; ++f) {
    m->inv_freq[f] = powf(10000.0f, -(float)f / kPairs);
  }
  for (int l = 0; l < kLayers; ++l) {
    for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
      m->keys[l][i] = (float)test_random_normal(&random);
    }
    for (int h = 0; h < kQueryHeads; ++h) {
      float* head = m->centers[l] + h * kStride;
      for (int f = 0; f < kPairs; ++f) {
        head[f] = (float)test_random_normal(&random);
        head[kPairs + f] = (float)test_random_normal(&random);
        head[2 * kPairs + f] = hypotf(head[f], head[kPairs + f]) +
                               (float)test_random_unit(&random);
      }
    }
    kvevict_view* view = &m->views[l];
    *view = (kvevict_view)KVEVICT_VIEW_INIT;
    view->n_kv_heads = kHeads;
    view->k =
        kvevict_plane_head_major(m->keys[l], KVEVICT_DTYPE_F32, kTokens, kDim);
    m->planes[l] = test_floats_plane(m->centers[l], kStride);
    m->planes[l].head_dim = kPairs;
    m->planes[l].token_stride_bytes = kPairs * sizeof(float);
    m->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    m->inputs[l].query_centers = &m->planes[l];
  }
  m->layer = test_layer(kQueryHeads, kHeads, kDim, 0);
  m->geometry = test_geometry(kLayers, kTokens, &m->layer);
  m->geometry.rope_layout = layout;
  m->geometry.rope_inv_freq = m->inv_freq;
  m->geometry.rope_inv_freq_len = kPairs;
  return m;
}

static kvevict_score_job JobOf(model* m, uint32_t layer, float* scores) {
  kvevict_score_job job = test_score_job(kTokens, &m->views[layer],
                                         &m->inputs[layer], scores, kHeads);
  job.layer = layer;
  return job;
}

/* The mean of a token and its neighbors. Beyond the ends is 0. */
static double Pooled(const double* row, uint32_t n, uint32_t t) {
  return ((t > 0 ? row[t - 1] : 0.0) + row[t] +
          (t + 1 < n ? row[t + 1] : 0.0)) /
         3.0;
}

/* Expected scores of the n tokens of a KV head, reduced over the group, and the
 * tolerance of f32. NULL positions are slots. */
static void Expected(const model* m, uint32_t layer, uint32_t head, uint32_t n,
                     const int32_t* positions, uint32_t n_sink, uint32_t n_seen,
                     bool is_max, bool pools, double* scores, double* bounds) {
  double each[kGroup * kTokens], each_bound[kGroup * kTokens];
  const oracle_centers in = {
      m->keys[layer] + head * kTokens * kDim,
      positions,
      n,
      kDim,
      n_sink,
      n_seen,
      kGroup,
      kPairs,
      m->geometry.rope_layout == KVEVICT_ROPE_LAYOUT_INTERLEAVED,
      m->inv_freq,
      m->centers[layer] + head * kGroup * kStride,
      kStride};
  oracle_query_centers(&in, NULL, each, each_bound);
  for (uint32_t t = 0; t < n; ++t) {
    scores[t] = is_max ? -INFINITY : 0.0;
    bounds[t] = 0.0;
    for (uint32_t g = 0; g < kGroup; ++g) {
      const double* const row = each + g * n;
      const double z = pools ? Pooled(row, n, t) : row[t];
      scores[t] = is_max ? fmax(scores[t], z) : scores[t] + z / kGroup;
      const double* const bound = each_bound + g * n;
      bounds[t] = fmax(
          bounds[t], (pools ? Pooled(bound, n, t) : bound[t]) + 4e-7 * fabs(z));
    }
  }
}

Test(score, centers_scores_are_what_the_definition_says) {
  static const char* const kPolicies[] = {
      "triattention:sink=0,budget=20",
      "triattention:budget=20,sink=3,group=mean",
      "triattention:sink=0,budget=20,pool=avg3,edge=pad,order=pool-reduce"};
  for (int p = 0; p < 3; ++p) {
    for (int layout = 0; layout < 2; ++layout) {
      model* m = DrawModel((kvevict_rope_layout)layout);
      test_plan* plan = test_plan_create(kPolicies[p], &m->geometry,
                                         KVEVICT_OPERATION_SCORE, 2);
      float scores[kHeads * kTokens];
      kvevict_score_job job = JobOf(m, 1, scores);
      job.n_seen = p != 1 ? 0 : 123456;
      EXPECT_OK(test_score_jobs(plan, &job, 1));
      for (uint32_t h = 0; h < kHeads; ++h) {
        double expected[kTokens], bounds[kTokens];
        Expected(m, 1, h, kTokens, NULL, p != 1 ? 0 : 3,
                 p != 1 ? kTokens : 123456, p != 1, p == 2, expected, bounds);
        for (int t = 0; t < kTokens; ++t) {
          EXPECT(fabs(scores[h * kTokens + t] - expected[t]) <= bounds[t],
                 "policy %d, head %u, token %d: %.9g, not %.9g to %.3g", p, h,
                 t, (double)scores[h * kTokens + t], expected[t], bounds[t]);
        }
      }
      test_plan_destroy(plan);
      free(m);
    }
  }
}

Test(score, centers_and_tokens_seen_are_checked) {
  model* m = DrawModel(KVEVICT_ROPE_LAYOUT_HALF);
  test_plan* p = test_plan_create("triattention:sink=0,budget=20", &m->geometry,
                                  KVEVICT_OPERATION_SCORE, 1);
  float scores[kHeads * kTokens];
  GUARD(scores);
  kvevict_score_job job = JobOf(m, 0, scores);
  kvevict_plane* const plane = &m->planes[0];
  const kvevict_plane good = *plane;
#define EXPECT_BREAKS(change, ...)                            \
  do {                                                        \
    change;                                                   \
    EXPECT_INVALID(test_score_jobs(p, &job, 1), __VA_ARGS__); \
    job = JobOf(m, 0, scores);                                \
    *plane = good;                                            \
    m->inputs[0].query_centers = plane;                       \
  } while (0)
  EXPECT_BREAKS(job.n_seen = kTokens - 1, "n_seen 59", "60");
  EXPECT_BREAKS(job.n_seen = 0x80000000u, "n_seen 2147483648", "2147483647");
  EXPECT_BREAKS(m->inputs[0].query_centers = NULL,
                "inputs.query_centers is NULL", "query centers");
  EXPECT_BREAKS(job.inputs = NULL, "inputs.query_centers is NULL");
  EXPECT_BREAKS(plane->head_dim = 11, "query_centers.head_dim 11", "10");
  EXPECT_BREAKS(plane->dtype = KVEVICT_DTYPE_F16, "query_centers.dtype");
  EXPECT_BREAKS(plane->token_stride_bytes = 44,
                "query_centers.token_stride_bytes 44", "40");
  EXPECT_BREAKS(plane->head_stride_bytes = 80,
                "query_centers.head_stride_bytes 80", "120");
#undef EXPECT_BREAKS
  EXPECT_UNTOUCHED(scores);
  test_plan_destroy(p);
  free(m);
}

Test(plan, rope_is_checked) {
  model* m = DrawModel(KVEVICT_ROPE_LAYOUT_HALF);
  kvevict_context* const context = test_context();
  const kvevict_policy* by_centers =
      test_policy("triattention:sink=0,budget=20");
  const kvevict_policy* by_keys = test_policy("knorm:sink=0,budget=20");
  kvevict_plan* plan = NULL;
  const kvevict_geometry good = m->geometry;
#define EXPECT_BREAKS(policy, change, ...)                               \
  do {                                                                   \
    change;                                                              \
    EXPECT_INVALID(                                                      \
        kvevict_plan_create(context, &m->geometry, policy, NULL, &plan), \
        "geometry: ", __VA_ARGS__);                                      \
    m->geometry = good;                                                  \
  } while (0)
  EXPECT_BREAKS(by_keys, m->geometry.rope_inv_freq = NULL,
                "rope_inv_freq is NULL", "10");
  EXPECT_BREAKS(by_keys, m->geometry.rope_layout = (kvevict_rope_layout)2,
                "rope_layout 2", "[0, 1]");
  EXPECT_BREAKS(by_keys, m->geometry.rope_inv_freq_len = 257,
                "rope_inv_freq_len 257", "256");
  EXPECT_BREAKS(by_centers, m->geometry.rope_inv_freq_len = 0,
                "rope_inv_freq is NULL", "query centers");
  m->inv_freq[3] = NAN;
  EXPECT_BREAKS(by_keys, (void)0, "rope_inv_freq[3]", "nan");
  m->inv_freq[3] = 0.5f;
  m->layer.k_head_dim = 19;
  EXPECT_BREAKS(by_centers, (void)0, "rope_inv_freq_len 10", "k_head_dim 19");
  EXPECT_BREAKS(by_keys, (void)0, "rope_inv_freq_len 10", "k_head_dim 19");
  m->layer.k_head_dim = 20;
  EXPECT_OK(kvevict_plan_create(context, &m->geometry, by_keys, NULL, &plan));
#undef EXPECT_BREAKS
  kvevict_plan_destroy(plan);
  free(m);
}

/* Evicts again and again. Each row left in K has the angle of its position, which
 * the policy is not told. */
Test(score, centers_evictions_keep_what_the_definition_ranks_highest) {
  enum { kBudget = 30, kSink = 2, kRounds = 4 };
  test_random random = test_random_start("score centers rounds");
  model* m = DrawModel(KVEVICT_ROPE_LAYOUT_INTERLEAVED);
  test_plan* p = test_plan_create("triattention:budget=30,sink=2", &m->geometry,
                                  KVEVICT_OPERATION_EVICT, 2);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = m->inputs;
  options.inputs_len = kLayers;
  uint32_t n_seen = 0, n_held = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int l = 0; l < kLayers; ++l) {
      for (int h = 0; h < kHeads; ++h) {
        float* rows = m->keys[l] + h * kTokens * kDim;
        for (uint32_t i = n_held * kDim; i < kTokens * kDim; ++i) {
          rows[i] = (float)test_random_normal(&random);
        }
      }
    }
    EXPECT_OK(kvevict_sequence_append(sequence, kTokens - n_held, NULL));
    n_seen += kTokens - n_held;
    static int32_t positions[kLayers][kHeads][kTokens];
    static double scores[kLayers][kHeads][kTokens];
    static double bounds[kLayers][kHeads][kTokens];
    size_t n = 0;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        EXPECT_OK(kvevict_sequence_keep_positions(
            sequence, l, h, positions[l][h], kTokens, &n));
        Expected(m, l, h, kTokens, positions[l][h], kSink, n_seen, true, false,
                 scores[l][h], bounds[l][h]);
      }
    }
    EXPECT_OK(kvevict_sequence_evict(sequence, m->views, kLayers, &options,
                                     p->workspace, p->workspace_bytes, NULL));
    n_held = kBudget;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        int32_t kept[kTokens];
        EXPECT_OK(
            kvevict_sequence_keep_positions(sequence, l, h, kept, kTokens, &n));
        EXPECT(n == kBudget, "%zu kept", n);
        double lowest = INFINITY, highest = -INFINITY;
        size_t next = 0;
        for (uint32_t t = 0; t < kTokens; ++t) {
          const bool stays = next < n && kept[next] == positions[l][h][t];
          next += stays;
          if (t < kSink) {
            EXPECT(stays, "lost sink %u", t);
          } else if (stays) {
            lowest = fmin(lowest, scores[l][h][t] + bounds[l][h][t]);
          } else {
            highest = fmax(highest, scores[l][h][t] - bounds[l][h][t]);
          }
        }
        EXPECT(next == n && lowest >= highest,
               "round %d, layer %u, head %u: kept %.9g and lost %.9g", round, l,
               h, lowest, highest);
      }
    }
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(p);
  free(m);
}
