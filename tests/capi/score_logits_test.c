/* Scores of attention with capped logits or softmax sinks. kvevict_attend(), which
 * has an oracle of its own, gives the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/attention.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"

enum { kLayers = 2, kQ = 6, kKv = 2, kDim = 24, kTokens = 90, kWindow = 5 };

typedef struct model {
  kvevict_context* context;
  kvevict_plan* plan;
  const kvevict_policy* policy;
  float softcap;
  float sinks[kLayers * kQ];
  float k[kLayers][kTokens][kKv][kDim];
  float q[kLayers][kWindow][kQ][kDim];
  kvevict_view views[kLayers];
  kvevict_plane queries[kLayers];
} model;

static kvevict_plane PlaneOf(const void* data, uint32_t n_heads) {
  return kvevict_plane_token_major(data, KVEVICT_DTYPE_F32, n_heads, kDim);
}

static kvevict_status Plan(model* m, float softcap, const float* sinks,
                           size_t n_sinks) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = kQ;
  layer.n_kv_heads = kKv;
  layer.k_head_dim = kDim;
  layer.v_head_dim = 0; /* values are a part of the keys */
  layer.logit_softcap = softcap;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = kLayers;
  geometry.max_tokens = kTokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  geometry.sink_logits = sinks;
  geometry.sink_logits_len = n_sinks;
  return kvevict_plan_create(m->context, &geometry, m->policy, NULL, &m->plan);
}

static model* Model(const char* policy, float softcap, float sink) {
  model* m = calloc(1, sizeof(model));
  test_random random = test_random_start("score_logits");
  m->context = test_context();
  m->policy = test_policy(policy);
  float* numbers = &m->k[0][0][0][0];
  const size_t n = (sizeof m->k + sizeof m->q) / sizeof(float);
  for (size_t i = 0; i < n; ++i) {
    numbers[i] = (float)(4.0 * test_random_unit(&random) - 2.0);
  }
  m->softcap = softcap;
  for (uint32_t h = 0; h < kLayers * kQ; ++h) {
    m->sinks[h] = sink + (float)test_random_unit(&random);
  }
  m->sinks[3] = -INFINITY;
  for (uint32_t l = 0; l < kLayers; ++l) {
    m->views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    m->views[l].n_kv_heads = kKv;
    m->views[l].k = PlaneOf(m->k[l], kKv);
    m->queries[l] = PlaneOf(m->q[l], kQ);
  }
  const int has_sinks = !isnan(sink);
  EXPECT_OK(Plan(m, softcap, has_sinks ? m->sinks : NULL,
                 has_sinks ? kLayers * kQ : 0));
  return m;
}

static void Destroy(model* m) {
  kvevict_plan_destroy(m->plan);
  free(m);
}

/* [kKv, kTokens]: the attention of the last kWindow queries, summed over each group. */
static void Attend(const model* m, uint32_t layer, int has_sinks, float* sums) {
  static float out[kWindow][kQ][kDim];
  kvevict_plane out_plane = PlaneOf(out, kQ);
  kvevict_plane weights =
      kvevict_plane_head_major(sums, KVEVICT_DTYPE_F32, kTokens, 1);
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
  job.n_tokens = kTokens;
  job.view = &m->views[layer];
  job.queries = &m->queries[layer];
  job.out = &out_plane;
  job.n_q_heads = kQ;
  job.n_queries = kWindow;
  job.logit_softcap = m->softcap;
  job.sink_logits = has_sinks ? m->sinks + layer * kQ : NULL;
  job.sink_logits_len = has_sinks ? kQ : 0;
  job.attention_sums = &weights;
  job.n_sum_heads = kKv;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_attend_workspace(m->context, &job, 1, &size));
  void* workspace = aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
  EXPECT_OK(
      kvevict_attend(m->context, &job, 1, workspace, size.best_bytes, NULL));
  free(workspace);
}

static void* Workspace(const model* m, kvevict_operation operation,
                       size_t* n_bytes) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_plan_workspace(m->plan, operation, 0, &size));
  *n_bytes = size.best_bytes;
  return aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
}

static kvevict_signal_inputs InputsOf(const model* m, uint32_t layer) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &m->queries[layer];
  inputs.n_query_rows = kWindow;
  return inputs;
}

static const float kCaps[] = {0.0f, 0.3f, 5.0f};
static const float kSinks[] = {NAN, -3.0f, 2.0f};

Test(score_logits, are_those_of_attention) {
  for (size_t i = 0; i < 9; ++i) {
    for (int h2o = 0; h2o < 2; ++h2o) {
      const float sink = kSinks[i % 3];
      model* m = Model(h2o ? "h2o:budget=40,group=sum,rows=sum"
                           : "snapkv:budget=40,window=5,pool=none,group=sum,"
                             "rows=sum",
                       kCaps[i / 3], sink);
      size_t n_bytes;
      void* workspace = Workspace(m, KVEVICT_OPERATION_SCORE, &n_bytes);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        float expected[kKv * kTokens], scores[kKv * kTokens];
        Attend(m, layer, !isnan(sink), expected);
        const kvevict_signal_inputs inputs = InputsOf(m, layer);
        kvevict_score_job job =
            test_score_job(kTokens, &m->views[layer], &inputs, scores, kKv);
        job.layer = layer;
        EXPECT_OK(kvevict_score(m->plan, &job, 1, workspace, n_bytes, NULL));
        for (uint32_t t = 0; t < kKv * kTokens; ++t) {
          if (isinf(scores[t])) continue; /* the window, which stays */
          EXPECT(fabsf(scores[t] - expected[t]) <= 1e-5f * expected[t] + 1e-9f,
                 "cap %g sink %g h2o %d layer %u: score %u is %.9g, not %.9g",
                 (double)kCaps[i / 3], (double)sink, h2o, layer, t,
                 (double)scores[t], (double)expected[t]);
        }
      }
      free(workspace);
      Destroy(m);
    }
  }
}

/* An eviction keeps what weighs most, and a sink or a cap changes that. */
Test(score_logits, decide_what_stays) {
  enum { kBudget = 20 };
  int32_t kept[3][kBudget];
  for (int i = 0; i < 3; ++i) {
    model* m = Model("snapkv:budget=20,window=5,sink=0,pool=none,group=sum",
                     i == 1 ? 0.05f : 0.0f, i == 2 ? 6.0f : NAN);
    if (i == 2) m->sinks[0] = 40.0f; /* leaves nothing to give in one head */
    kvevict_plan_destroy(m->plan);
    EXPECT_OK(Plan(m, m->softcap, i == 2 ? m->sinks : NULL,
                   i == 2 ? kLayers * kQ : 0));
    float expected[kKv * kTokens];
    Attend(m, 0, i == 2, expected);
    kvevict_sequence* sequence;
    EXPECT_OK(kvevict_sequence_create(m->plan, &sequence));
    EXPECT_OK(kvevict_sequence_append(sequence, kTokens, NULL));
    kvevict_signal_inputs inputs[kLayers] = {InputsOf(m, 0), InputsOf(m, 1)};
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = inputs;
    options.inputs_len = kLayers;
    size_t n_bytes, n = 0;
    void* workspace = Workspace(m, KVEVICT_OPERATION_EVICT, &n_bytes);
    EXPECT_OK(kvevict_sequence_evict(sequence, m->views, kLayers, &options,
                                     workspace, n_bytes, NULL));
    EXPECT_OK(
        kvevict_sequence_keep_positions(sequence, 0, 0, kept[i], kBudget, &n));
    cr_assert(n == kBudget);
    float least = INFINITY;
    for (uint32_t s = 0; s < kBudget - kWindow; ++s) {
      least = fminf(least, expected[kept[i][s]]);
    }
    uint32_t above = 0;
    for (uint32_t t = 0; t < kTokens - kWindow; ++t)
      above += expected[t] > least;
    EXPECT(above == kBudget - kWindow - 1, "case %d: %u weigh more", i, above);
    free(workspace);
    kvevict_sequence_destroy(sequence);
    Destroy(m);
  }
  cr_expect(memcmp(kept[0], kept[1], sizeof kept[0]) != 0);
  cr_expect(memcmp(kept[0], kept[2], sizeof kept[0]) != 0);
}

Test(score_logits, are_checked) {
  model* m = Model("snapkv:budget=40,window=5", 0.0f, NAN);
  kvevict_plan* const plan = m->plan;
  float sinks[kLayers * kQ] = {0};
  EXPECT_INVALID(Plan(m, -1.0f, NULL, 0),
                 "logit_softcap -1 is not a finite number >= 0");
  EXPECT_INVALID(Plan(m, NAN, NULL, 0), "logit_softcap nan");
  EXPECT_INVALID(Plan(m, 0.0f, sinks, kQ),
                 "sink_logits_len 6 is not 12, the query heads of 2 layers");
  EXPECT_INVALID(Plan(m, 0.0f, NULL, 12), "sink_logits is NULL");
  sinks[7] = NAN;
  EXPECT_INVALID(Plan(m, 0.0f, sinks, 12), "sink_logits[7] nan");
  sinks[7] = INFINITY;
  EXPECT_INVALID(Plan(m, 0.0f, sinks, 12), "sink_logits[7] inf");
  m->plan = plan;
  Destroy(m);
}
