/* Biases of slots that hide all that a row sees, and biases that are refused. score_test.c
 * has other biases, edit_test.c those in paged caches. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kHeads = 2, kQueryHeads = 4, kDim = 8, kTokens = 40, kMostRows = 40 };

/* ---- Scores ---- */

/* Elements beyond the first kDim, of keys and queries, make the bias of a slot. */
typedef struct tensors {
  float keys[kTokens][kHeads][kDim + 1];
  float queries[kMostRows][kQueryHeads][kDim + 1];
  float mean[kQueryHeads][kDim + 1];
  float biases[kTokens][kHeads];
  float values[kTokens][kHeads][kDim];
} tensors;

static const float kScale = 0.4f;

static void Draw(tensors* t, test_random* random) {
  for (int i = 0; i < kTokens; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      for (int e = 0; e < kDim; ++e) {
        t->keys[i][h][e] = test_random_normal(random);
        t->values[i][h][e] = test_random_normal(random);
      }
      t->biases[i][h] = test_random_normal(random);
      t->keys[i][h][kDim] = t->biases[i][h] / kScale;
    }
  }
  for (int h = 0; h < kQueryHeads; ++h) {
    for (int i = 0; i < kMostRows; ++i) {
      for (int e = 0; e < kDim; ++e) {
        t->queries[i][h][e] = test_random_normal(random);
      }
      t->queries[i][h][kDim] = 1;
    }
    for (int e = 0; e < kDim; ++e) t->mean[h][e] = test_random_normal(random);
    t->mean[h][kDim] = 1;
  }
}

/* Scores with biases in a plane, or in an element of keys. */
static void Score(const tensors* t, const char* policy, uint32_t n_rows,
                  int in_plane, float* scores) {
  const uint32_t dim = in_plane ? kDim : kDim + 1;
  kvevict_layer_geometry layer = test_layer(kQueryHeads, kHeads, dim, kDim);
  layer.q_dtype = KVEVICT_DTYPE_F32;
  layer.softmax_scale = kScale;
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  test_plan* plan =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.k = kvevict_plane_token_major(t->keys, KVEVICT_DTYPE_F32, kHeads, dim);
  view.k.head_stride_bytes = sizeof t->keys[0][0];
  view.k.token_stride_bytes = sizeof t->keys[0];
  view.v =
      kvevict_plane_token_major(t->values, KVEVICT_DTYPE_F32, kHeads, kDim);
  view.n_kv_heads = kHeads;
  kvevict_plane bias =
      kvevict_plane_token_major(t->biases, KVEVICT_DTYPE_F32, kHeads, 1);
  bias.role = KVEVICT_ROLE_BIAS;
  if (in_plane) {
    view.companions = &bias;
    view.n_companions = 1;
  }
  kvevict_plane queries = kvevict_plane_token_major(
      t->queries[kMostRows - n_rows], KVEVICT_DTYPE_F32, kQueryHeads, dim);
  queries.head_stride_bytes = sizeof t->queries[0][0];
  queries.token_stride_bytes = sizeof t->queries[0];
  float mean[kQueryHeads][kDim + 1];
  for (int h = 0; h < kQueryHeads; ++h) {
    memcpy((float*)mean + (size_t)h * dim, t->mean[h], dim * sizeof(float));
  }
  const kvevict_plane means =
      kvevict_plane_head_major(mean, KVEVICT_DTYPE_F32, 1, dim);
  int32_t positions[kMostRows];
  for (int i = 0; i < kMostRows; ++i) positions[i] = 5 * i;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = n_rows > 0 ? &queries : NULL;
  inputs.query_mean = n_rows > 0 ? NULL : &means;
  if (strstr(policy, "h2o") != NULL) inputs.n_query_rows = n_rows;
  if (strstr(policy, "reference") != NULL) {
    inputs.reference_queries = &queries;
    inputs.n_reference_rows = n_rows;
    inputs.reference_positions = positions;
  }
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = kTokens;
  job.view = &view;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = kHeads * kTokens;
  EXPECT_OK(kvevict_score(plan->plan, &job, 1, plan->workspace,
                          plan->workspace_bytes, NULL));
  test_plan_destroy(plan);
}

/* A bias is what one more element of the key adds, with 1 in the query. The logits of
 * either are sums of up to 9 products of a magnitude of at most 50 in all, so weights
 * differ by 2 * 12 * 50 * 2^-24 of themselves, and sums of them by a few units more. The
 * first slots may be hidden. */
static void ExpectAlike(const tensors* t, const char* policy, uint32_t n_rows,
                        int n_hidden, float* plane) {
  float element[kHeads * kTokens];
  Score(t, policy, n_rows, 1, plane);
  Score(t, policy, n_rows, 0, element);
  for (int j = 0; j < kHeads * kTokens; ++j) {
    const double apart = fabs(plane[j] - element[j]);
    EXPECT(isinf(element[j])        ? plane[j] == element[j]
           : j % kTokens < n_hidden ? plane[j] <= 1e-6
                                    : apart <= 1e-4 * fabs(element[j]) + 1e-9,
           "%s: score %d is %.9g, not %.9g", policy, j, (double)plane[j],
           (double)element[j]);
  }
}

/* Rows of which all slots are hidden add nothing: the first ones, the first chunk, and
 * the reference query at position 0. Elements of keys that make a weight of e^-100 do
 * the same to all other slots. Then all slots of a head are hidden. */
Test(sequence_biases, that_hide_all_that_a_row_sees_leave_others_alone) {
  enum { kHidden = 4 };
  static const struct {
    const char* policy;
    uint32_t n_rows;
  } kRows[] = {
      {"snapkv:budget=20,window=6,pool=none", 6},
      {"snapkv:budget=20,sink=0,window=6,pool=none,reference=9", 9},
      {"tova:budget=20", 1},
      {"h2o:budget=20,sink=0,recent=4", kTokens},
      {"non-causal:budget=20,sink=0,block=4,pool=none", kTokens},
      {"snapkv:budget=20,window=6,pool=none,order=reduce-logits,group=max", 6},
      {"expected-attention:budget=20,sink=0", 0}};
  test_random random = test_random_start("hidden biases score");
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    const char* policy = kRows[i].policy;
    tensors t;
    Draw(&t, &random);
    float plane[kHeads * kTokens];
    /* Chunks have no scale. */
    const float scale = strstr(policy, "non-causal") != NULL ? 1 : kScale;
    for (int j = 0; j < kTokens * kHeads; ++j) {
      const int slot = j / kHeads, head = j % kHeads;
      if (slot < kHidden) t.biases[slot][head] = -INFINITY;
      t.keys[slot][head][kDim] =
          (slot < kHidden ? -100 : t.biases[slot][head]) / scale;
    }
    ExpectAlike(&t, policy, kRows[i].n_rows, kHidden, plane);
    for (int slot = 0; slot < kTokens; ++slot) t.biases[slot][1] = -INFINITY;
    Score(&t, policy, kRows[i].n_rows, 1, plane);
    for (int j = 0; j < kHeads * kTokens; ++j) {
      EXPECT(!isnan(plane[j]), "%s: score %d of a hidden head is NaN", policy,
             j);
    }
  }
}

/* ---- What is refused ---- */

static void ExpectBias(kvevict_view* view, kvevict_plane bias,
                       const char* problem) {
  view->companions = &bias;
  view->n_companions = 1;
  if (problem == NULL) {
    EXPECT_OK(kvevict_view_validate(view, 10));
  } else {
    EXPECT_INVALID(kvevict_view_validate(view, 10), "companions", "bias",
                   problem);
  }
}

Test(sequence_biases, are_one_f32_of_each_slot) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 2;
  view.k = kvevict_plane_token_major((void*)0x10000, KVEVICT_DTYPE_F16, 2, 8);
  kvevict_plane bias =
      kvevict_plane_token_major((void*)0x20000, KVEVICT_DTYPE_F32, 2, 1);
  bias.role = KVEVICT_ROLE_BIAS;
  ExpectBias(&view, bias, NULL);
  kvevict_plane others[4] = {bias, bias, bias, bias};
  static const char* const kProblems[] = {
      "dtype f16", "head_dim 2", "token_stride_bytes 0", "group_tokens 2"};
  others[0].dtype = KVEVICT_DTYPE_F16;
  others[1].head_dim = 2, others[1].head_stride_bytes = 8;
  others[1].token_stride_bytes = 16;
  others[2].token_stride_bytes = 0;
  others[3].group_tokens = 2;
  for (int i = 0; i < 4; ++i) ExpectBias(&view, others[i], kProblems[i]);
  kvevict_plane two[2] = {bias, bias};
  two[1].data += 0x10000;
  view.companions = two;
  view.n_companions = 2;
  EXPECT_INVALID(kvevict_view_validate(&view, 10), "role bias",
                 "companions[0]");
  view.v = view.k;
  view.v.data += 0x100000;
  memset(&view.k, 0, sizeof view.k);
  ExpectBias(&view, bias, "k.data is 0");
}

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_companions = 1;
  return test_model_create(&spec, (test_random){4});
}

Test(sequence_biases, evictions_say_what_is_missing) {
  test_model* m = Model("snapkv:budget=40,window=8,fit=bias-values");
  test_model_step(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[0]",
                 "none has role bias", "fit bias-values");
  m->live[0]->companions[0].role = KVEVICT_ROLE_BIAS;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[1]",
                 "none has role bias");
  test_model_check(m, "after errors");
  m->live[1]->companions[0].role = KVEVICT_ROLE_BIAS;
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* Layers that keep the same tokens may share other companions. */
Test(sequence_biases, belong_to_one_layer) {
  for (int fits = 0; fits < 2; ++fits) {
    test_model* m =
        Model(fits ? "streaming-llm:budget=40,reference=4,fit=bias-values"
                   : "streaming-llm:budget=40,reference=4,fit=values");
    test_model_step(m, 80);
    m->live[0]->companions[0].role = KVEVICT_ROLE_BIAS;
    m->views[1].companions = m->views[0].companions;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    if (fits) {
      EXPECT_INVALID(test_model_evict(m, &options, NULL),
                     "views[1].companions[0]", "views[0]", "biases of its own");
    } else {
      EXPECT_OK(test_model_evict(m, &options, NULL));
    }
    test_model_destroy(m);
  }
}
