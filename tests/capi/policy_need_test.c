/* kvevict_policy_need() says what kvevict_score() does. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kQHeads = 4, kHeads = 2, kTokens = 64, kDim = 8 };

/* Each plane of the inputs: the length of a head's row, and the rows per head. */
static const struct {
  kvevict_input input;
  size_t offset;
  uint32_t head_dim, n_rows;
} kInputs[] = {
    {KVEVICT_INPUT_QUERIES, offsetof(kvevict_signal_inputs, queries), kDim, 1},
    {KVEVICT_INPUT_ROW_LSE, offsetof(kvevict_signal_inputs, row_lse), 1, 1},
    {KVEVICT_INPUT_SCORES, offsetof(kvevict_signal_inputs, scores), 1, 1},
    {KVEVICT_INPUT_ATTENTION_SUMS,
     offsetof(kvevict_signal_inputs, attention_sums), 1, 1},
    {KVEVICT_INPUT_QUERY_MEAN, offsetof(kvevict_signal_inputs, query_mean),
     kDim, 1},
    {KVEVICT_INPUT_QUERY_COVARIANCE,
     offsetof(kvevict_signal_inputs, query_covariance), kDim, kDim},
    {KVEVICT_INPUT_KEY_FILTER, offsetof(kvevict_signal_inputs, key_filter),
     kDim, 1},
    {KVEVICT_INPUT_TOKEN_WEIGHTS,
     offsetof(kvevict_signal_inputs, token_weights), 1, 1},
    {KVEVICT_INPUT_QUERY_CENTERS,
     offsetof(kvevict_signal_inputs, query_centers), kDim / 2, 3},
};
enum { kNInputs = sizeof kInputs / sizeof kInputs[0] };

typedef struct scene {
  float numbers[kQHeads * kTokens * kDim];
  float values[kHeads * kTokens * kDim];
  kvevict_view view;
  kvevict_plane planes[kNInputs];
  kvevict_signal_inputs inputs;
} scene;

static void Give(scene* s, uint32_t i, const kvevict_plane* plane) {
  memcpy((char*)&s->inputs + kInputs[i].offset, &plane, sizeof plane);
}

static void MakeScene(scene* s) {
  for (int i = 0; i < kQHeads * kTokens * kDim; ++i) {
    s->numbers[i] = (float)(i % 13) / 8.0f;
  }
  s->view = (kvevict_view)KVEVICT_VIEW_INIT;
  s->view.n_kv_heads = kHeads;
  s->view.k =
      kvevict_plane_head_major(s->numbers, KVEVICT_DTYPE_F32, kTokens, kDim);
  memcpy(s->values, s->numbers, sizeof s->values);
  s->view.v = s->view.k;
  s->view.v.data = (uint64_t)(uintptr_t)s->values;
  s->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  for (uint32_t i = 0; i < kNInputs; ++i) {
    const uint32_t dim = kInputs[i].head_dim;
    s->planes[i] = test_floats_plane(s->numbers, kTokens * kDim);
    s->planes[i].head_dim = dim;
    s->planes[i].token_stride_bytes = (int64_t)(dim * sizeof(float));
    Give(s, i, &s->planes[i]);
  }
}

static kvevict_status Score(const test_plan* p, const scene* s) {
  static float scores[kHeads * kTokens];
  kvevict_score_job job =
      test_score_job(kTokens, &s->view, &s->inputs, scores, kHeads);
  return test_score_jobs(p, &job, 1);
}

static kvevict_geometry GeometryOf(const kvevict_layer_geometry* layer) {
  static const float kInvFreq[kDim / 2] = {1.0f, 0.5f, 0.1f, 0.01f};
  kvevict_geometry geometry = test_geometry(1, kTokens, layer);
  geometry.rope_inv_freq = kInvFreq;
  geometry.rope_inv_freq_len = kDim / 2;
  return geometry;
}

static kvevict_need NeedOf(const test_plan* p, kvevict_input input) {
  kvevict_need need = -1;
  EXPECT_OK(kvevict_policy_need(p->policy_handle, input, &need));
  return need;
}

/* Scores without attention sums, which keys and queries replace. */
static kvevict_status ScoreWithoutSums(const test_plan* p, const scene* s) {
  scene other = *s;
  other.inputs.attention_sums = NULL;
  return Score(p, &other);
}

/* Keys and values have a dtype that nothing can read. */
static void ExpectRowsAsSaid(const char* text, scene* s) {
  for (int values = 0; values < 2; ++values) {
    kvevict_layer_geometry layer = test_layer(kQHeads, kHeads, kDim, kDim);
    kvevict_plane* const rows = values ? &s->view.v : &s->view.k;
    const kvevict_plane readable = *rows;
    rows->dtype = KVEVICT_DTYPE_OPAQUE;
    rows->head_dim = 0;
    rows->row_bytes = kDim * sizeof(float);
    *(values ? &layer.v_dtype : &layer.k_dtype) = rows->dtype;
    *(values ? &layer.v_head_dim : &layer.k_head_dim) = 0;
    const kvevict_geometry geometry = GeometryOf(&layer);
    test_plan* p =
        test_plan_create(text, &geometry, KVEVICT_OPERATION_SCORE, 1);
    const kvevict_need need =
        NeedOf(p, values ? KVEVICT_INPUT_VALUES : KVEVICT_INPUT_KEYS);
    kvevict_status status = Score(p, s);
    if (need == KVEVICT_NEED_OPTIONAL) status = ScoreWithoutSums(p, s);
    EXPECT((status == KVEVICT_OK) == (need == KVEVICT_NEED_NONE),
           "%s, opaque %s: need %d, status %d", text,
           values ? "values" : "keys", need, status);
    test_plan_destroy(p);
    *rows = readable;
  }
}

/* Planes are absent, or such that no call could read them. */
static void ExpectAsSaid(const char* text) {
  const kvevict_layer_geometry layer = test_layer(kQHeads, kHeads, kDim, kDim);
  const kvevict_geometry geometry = GeometryOf(&layer);
  test_plan* p = test_plan_create(text, &geometry, KVEVICT_OPERATION_SCORE, 1);
  static scene s;
  MakeScene(&s);
  EXPECT_OK(Score(p, &s));
  for (uint32_t i = 0; i < kNInputs; ++i) {
    const kvevict_need need = NeedOf(p, kInputs[i].input);
    Give(&s, i, NULL);
    const kvevict_status absent = Score(p, &s);
    EXPECT((absent == KVEVICT_OK) == (need != KVEVICT_NEED_REQUIRED),
           "%s, input %d absent: need %d, status %d", text, kInputs[i].input,
           need, absent);
    kvevict_plane unreadable = s.planes[i];
    unreadable.data = 0;
    Give(&s, i, &unreadable);
    kvevict_status wrong = Score(p, &s);
    if (wrong == KVEVICT_OK && need == KVEVICT_NEED_OPTIONAL) {
      wrong = ScoreWithoutSums(p, &s);
    }
    EXPECT((wrong == KVEVICT_OK) == (need == KVEVICT_NEED_NONE),
           "%s, input %d unreadable: need %d, status %d", text,
           kInputs[i].input, need, wrong);
    Give(&s, i, &s.planes[i]);
  }
  test_plan_destroy(p);
  ExpectRowsAsSaid(text, &s);
}

Test(policy_need, is_what_scoring_reads) {
  static const char* const kWeights[] = {"none", "norm", "given",
                                         "none,redundancy=0.5"};
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    if (strcmp(info.signal, "-") == 0 || strcmp(info.signal, "position") == 0) {
      continue; /* there is nothing to score */
    }
    for (uint32_t w = 0; w < 4; ++w) {
      char text[128];
      snprintf(text, sizeof text, "%s:budget=40,weight=%s", info.name,
               kWeights[w]);
      ExpectAsSaid(text);
    }
    ++n;
  }
  cr_assert_gt(n, 10);
}

Test(policy_need, place_wants_nothing) {
  static const char* const kTexts[] = {"none", "streaming-llm:budget=10"};
  for (int t = 0; t < 2; ++t) {
    const kvevict_policy* policy = test_policy(kTexts[t]);
    for (kvevict_input i = KVEVICT_INPUT_KEYS; i <= KVEVICT_INPUT_POSITIONS;
         ++i) {
      kvevict_need need = -1;
      EXPECT_OK(kvevict_policy_need(policy, i, &need));
      cr_expect_eq(need, KVEVICT_NEED_NONE, "%s: %d", kTexts[t], i);
    }
  }
}

Test(policy_need, merging_wants_rows_of_any_policy) {
  static const struct {
    const char* text;
    kvevict_need keys, values;
  } kRows[] = {
      {"none", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE},
      {"streaming-llm:merge=values", KVEVICT_NEED_REQUIRED,
       KVEVICT_NEED_REQUIRED},
      {"streaming-llm:merge=pivot", KVEVICT_NEED_REQUIRED,
       KVEVICT_NEED_OPTIONAL},
      {"h2o:merge=weighted", KVEVICT_NEED_REQUIRED, KVEVICT_NEED_OPTIONAL},
      {"cur:merge=pivot", KVEVICT_NEED_REQUIRED, KVEVICT_NEED_REQUIRED},
      {"custom:sink=0,merge=none", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    const kvevict_policy* policy = test_policy(kRows[i].text);
    kvevict_need keys = -1, values = -1;
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_KEYS, &keys));
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_VALUES, &values));
    cr_expect_eq(keys, kRows[i].keys, "%s", kRows[i].text);
    cr_expect_eq(values, kRows[i].values, "%s", kRows[i].text);
  }
}

Test(policy_need, bad_arguments_are_errors) {
  const kvevict_policy* policy = test_policy("snapkv:budget=100");
  kvevict_policy* wrong = test_policy_copy(policy);
  EXPECT_OK(kvevict_policy_set_number(wrong, "budget", 36));
  kvevict_need need = KVEVICT_NEED_OPTIONAL;
  EXPECT_INVALID(kvevict_policy_need(NULL, KVEVICT_INPUT_KEYS, &need),
                 "policy is NULL");
  EXPECT_INVALID(kvevict_policy_need(wrong, KVEVICT_INPUT_KEYS, &need),
                 "sink 4 + window 32 >= budget 36");
  EXPECT_INVALID(kvevict_policy_need(policy, -1, &need), "input -1");
  EXPECT_INVALID(
      kvevict_policy_need(policy, KVEVICT_INPUT_POSITIONS + 1, &need),
      "input 13");
  EXPECT_INVALID(kvevict_policy_need(policy, KVEVICT_INPUT_KEYS, NULL),
                 "out_need is NULL");
  cr_expect_eq(need, KVEVICT_NEED_OPTIONAL);
}
