/* kvevict_score() refuses these calls, names what is wrong, and writes nothing. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum {
  kQ = 4,
  kKv = 2,
  kTokens = 40,
  kMost = 43,
  kDim = 8,
  kPairs = 3,
  kRef = 2
};

/* A good call of two jobs: every input is there. The second job is changed. */
typedef struct scene {
  struct scene* first; /* has the first job */
  float k[kKv * kMost * kDim], v[kKv * kMost * kDim];
  float numbers[kQ * kTokens * kDim];
  float inv_freq[kPairs];
  int32_t positions[kRef + 1];
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
  kvevict_plan* plan;
  char *memory, *workspace;
  size_t bytes, jobs_len;
  kvevict_view view;
  kvevict_plane queries, reference, scores_plane, weights, sums, mean,
      covariance, filter, centers, lse;
  kvevict_signal_inputs inputs;
  kvevict_score_job job, both[2], *jobs;
  float scores[kKv * kTokens];
} scene;

static kvevict_plane Rows(const float* data, uint32_t n, uint32_t dim) {
  return kvevict_plane_head_major(data, KVEVICT_DTYPE_F32, n, dim);
}

static scene* MakeJob(const char* text) {
  scene* s = calloc(1, sizeof *s);
  const kvevict_policy* policy = test_policy(text);
  for (int i = 0; i < kQ * kTokens * kDim; ++i) {
    s->numbers[i] = (float)(i % 13) / 8.0f;
  }
  memcpy(s->k, s->numbers, sizeof s->k);
  memcpy(s->v, s->numbers, sizeof s->v);
  for (int f = 0; f < kPairs; ++f) s->inv_freq[f] = 1.0f / (float)(1 + f);
  s->layer = test_layer(kQ, kKv, kDim, kDim);
  s->geometry = test_geometry(1, kMost, &s->layer);
  s->geometry.rope_inv_freq = s->inv_freq;
  s->geometry.rope_inv_freq_len = kPairs;
  EXPECT_OK(kvevict_plan_create(test_context(), &s->geometry, policy, NULL,
                                &s->plan));
  s->bytes = test_workspace(s->plan, KVEVICT_OPERATION_SCORE, 0).best_bytes;
  s->memory = s->workspace = aligned_alloc(64, (s->bytes + 127) / 64 * 64);
  s->view = (kvevict_view)KVEVICT_VIEW_INIT;
  s->view.n_kv_heads = kKv;
  s->view.k = Rows(s->k, kMost, kDim);
  s->view.v = Rows(s->v, kMost, kDim);
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  EXPECT_OK(kvevict_policy_resolve(policy, kTokens, &resolved));
  s->queries = Rows(s->numbers, kTokens, kDim);
  s->reference = Rows(s->numbers, kRef, kDim);
  s->scores_plane = s->weights = s->sums = Rows(s->numbers, kTokens, 1);
  s->mean = s->filter = Rows(s->numbers, 1, kDim);
  s->covariance = Rows(s->numbers, kDim, kDim);
  s->centers = Rows(s->numbers, 3, kPairs);
  s->lse = Rows(s->numbers, kTokens, 1);
  kvevict_signal_inputs* in = &s->inputs;
  *in = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  in->queries = &s->queries;
  in->scores = &s->scores_plane;
  in->token_weights = &s->weights;
  in->attention_sums = &s->sums;
  in->query_mean = &s->mean;
  in->query_covariance = &s->covariance;
  in->key_filter = &s->filter;
  in->query_centers = &s->centers;
  kvevict_need need = KVEVICT_NEED_NONE;
  EXPECT_OK(
      kvevict_policy_need(policy, KVEVICT_INPUT_REFERENCE_QUERIES, &need));
  if (need != KVEVICT_NEED_NONE) {
    in->reference_queries = &s->reference;
    in->n_reference_rows = kRef;
    in->reference_positions = s->positions;
  }
  s->job = test_score_job(kTokens, &s->view, in, s->scores, kKv);
  s->jobs = s->both;
  s->jobs_len = 2;
  GUARD(s->scores);
  return s;
}

static scene* Make(const char* text) {
  scene* s = MakeJob(text);
  s->first = MakeJob(text);
  return s;
}

static kvevict_status Score(scene* s) {
  s->both[0] = s->first->job;
  s->both[1] = s->job;
  return kvevict_score(s->plan, s->jobs, s->jobs_len, s->workspace, s->bytes,
                       NULL);
}

static void End(scene* s) {
  if (s->first != NULL) End(s->first);
  kvevict_plan_destroy(s->plan);
  free(s->memory);
  free(s);
}

/* `change` to a good call for the policy makes it fail with `code`. */
#define EXPECT_BREAKS_WITH(code, policy, change, ...) \
  do {                                                \
    scene* s = Make(policy);                          \
    change;                                           \
    EXPECT_FAILS(Score(s), code, __VA_ARGS__);        \
    EXPECT_UNTOUCHED(s->scores);                      \
    EXPECT_UNTOUCHED(s->first->scores);               \
    End(s);                                           \
  } while (0)
#define EXPECT_BREAKS(policy, change, ...)                           \
  EXPECT_BREAKS_WITH(KVEVICT_ERROR_INVALID_ARGUMENT, policy, change, \
                     __VA_ARGS__)

static const char kSnap[] = "snapkv:window=8";

Test(score_errors, are_none_in_good_calls) {
  static const char* const kPolicies[] = {
      kSnap,        "snapkv:window=4,reference=2",  "h2o",
      "q-filter",   "expected-attention",           "triattention",
      "non-causal", "custom:weight=given",          "knorm:weight=norm",
      "leverage",   "custom:sink=0,redundancy=0.5", "lagkv:block=8"};
  for (size_t i = 0; i < sizeof kPolicies / sizeof *kPolicies; ++i) {
    scene* s = Make(kPolicies[i]);
    EXPECT_OK(Score(s));
    EXPECT(!test_is_filled(s->scores, sizeof s->scores), "%s", kPolicies[i]);
    End(s);
  }
}

Test(score_errors, of_the_call_and_its_job) {
  EXPECT_BREAKS(kSnap, (kvevict_plan_destroy(s->plan), s->plan = NULL), "plan",
                "NULL");
  EXPECT_BREAKS(kSnap, s->jobs = NULL, "jobs", "NULL");
  EXPECT_BREAKS(kSnap, s->jobs_len = KVEVICT_MAX_JOBS + 1, "jobs_len 129",
                "128");
  EXPECT_BREAKS(kSnap, s->job.struct_size = 8, "jobs[1]", "struct_size 8");
  EXPECT_BREAKS(kSnap, s->job.layer = 1, "jobs[1]", "layer 1", "n_layers 1");
  EXPECT_BREAKS(kSnap, s->job.scores = NULL, "scores", "NULL");
  EXPECT_BREAKS(kSnap, s->job.scores_len = 79, "scores_len 79", "40");
  EXPECT_BREAKS(kSnap, s->job.scores_len = 81, "scores_len 81", "40");
  EXPECT_BREAKS(kSnap, (s->job.n_tokens = 7, s->job.scores_len = 14),
                "n_tokens 7", "8");
  EXPECT_BREAKS(kSnap, (s->job.n_tokens = 0, s->job.scores_len = 0),
                "n_tokens 0", "8");
  EXPECT_BREAKS(kSnap, (s->job.n_tokens = 44, s->job.scores_len = 88),
                "n_tokens 44", "max_tokens 43");
  EXPECT_BREAKS(kSnap, s->job.n_seen = 39, "n_seen 39", "40");
  EXPECT_BREAKS(kSnap, s->job.n_seen = 0x80000000u, "n_seen 2147483648",
                "2147483647");
  const uint32_t more[] = {40, 41}, fewer[] = {40, 7};
  EXPECT_BREAKS(kSnap, s->job.token_counts = more, "token_counts[1] 41", "40");
  EXPECT_BREAKS(kSnap, s->job.token_counts = fewer, "token_counts[1] 7", "8");
  EXPECT_BREAKS(kSnap, s->workspace = NULL, "workspace", "NULL");
  EXPECT_BREAKS(kSnap, s->workspace += 32, "workspace", "64");
  EXPECT_BREAKS(kSnap, s->workspace = (char*)(((uintptr_t)s->k + 63) / 64 * 64),
                "workspace 0x", "overlaps jobs[");
  EXPECT_BREAKS(
      kSnap,
      s->bytes = test_workspace(s->plan, KVEVICT_OPERATION_SCORE, kTokens)
                     .least_bytes -
                 1,
      "workspace_bytes", "the least");
  EXPECT_BREAKS("streaming-llm", (void)0, "policy", "nothing to score");
  EXPECT_BREAKS("none", (void)0, "policy", "nothing to score");
}

Test(score_errors, of_views) {
  EXPECT_BREAKS(kSnap, s->job.view = NULL, "view", "NULL");
  EXPECT_BREAKS(kSnap, s->view.struct_size = 4, "struct_size", "4");
  EXPECT_BREAKS(kSnap, s->view.n_kv_heads = 1, "n_kv_heads 1", "2");
  EXPECT_BREAKS(kSnap, s->view.k.dtype = KVEVICT_DTYPE_BF16, "k.dtype", "3",
                "1");
  EXPECT_BREAKS(kSnap, s->view.k.head_dim = 7, "k.head_dim 7", "8");
  /* Rows that a policy reads must be there, whatever its signal is. */
  EXPECT_BREAKS(kSnap, s->view.k.data = 0, "k.data is 0");
  EXPECT_BREAKS("non-causal", s->view.v.data = 0, "v.data is 0");
  EXPECT_BREAKS("custom:sink=0,weight=norm", s->view.v.data = 0, "v.data is 0");
  EXPECT_BREAKS("custom:sink=0,redundancy=0.5", s->view.k.data = 0, "k.data");
  EXPECT_BREAKS("h2o", (s->inputs.attention_sums = NULL, s->job.view = NULL),
                "view", "NULL");
}

/* Every f32 plane is checked for all of this. */
Test(score_errors, of_planes) {
  static const struct {
    const char *policy, *name;
    size_t plane, place;
  } kPlanes[] = {
#define ROW(policy, input, plane) \
  {policy, #input, offsetof(scene, plane), offsetof(scene, inputs.input)}
      ROW("custom", scores, scores_plane),
      ROW("custom:weight=given", token_weights, weights),
      ROW("h2o", attention_sums, sums),
      ROW("expected-attention", query_mean, mean),
      ROW("expected-attention", query_covariance, covariance),
      ROW("q-filter", key_filter, filter),
      ROW("triattention", query_centers, centers),
#undef ROW
  };
  for (size_t i = 0; i < sizeof kPlanes / sizeof *kPlanes; ++i) {
    for (int way = 0; way < 8; ++way) {
      scene* s = Make(kPlanes[i].policy);
      kvevict_plane* const plane = (void*)((char*)s + kPlanes[i].plane);
      const kvevict_plane* none = NULL;
      /* A row alone has no stride between its tokens. */
      const bool is_row = plane == &s->mean || plane == &s->filter;
      if (way == 0) plane->head_dim += 1;
      if (way == 1) plane->dtype = KVEVICT_DTYPE_F16;
      if (way == 2) plane->data += 2;
      if (way == 3) plane->data = 0;
      if (way == 4) plane->reserved[1] = 3;
      if (way == 5) plane->head_stride_bytes -= 4;
      if (way == 6) plane->token_stride_bytes += 4;
      if (way == 7) {
        memcpy((char*)s + kPlanes[i].place, &none, sizeof none);
        if (plane == &s->sums) s->inputs.queries = NULL;
      }
      static const char* const kParts[] = {
          ".head_dim", ".dtype",    ".data",        ".data",
          ".reserved", ".head_str", ".token_strid", " is NULL"};
      char words[64];
      snprintf(words, sizeof words, "%s%s", kPlanes[i].name, kParts[way]);
      const bool is_optional = way == 7 && plane == &s->covariance;
      if (is_optional || (way == 6 && is_row)) {
        EXPECT_OK(Score(s));
      } else {
        EXPECT_INVALID(Score(s), words);
        EXPECT_UNTOUCHED(s->scores);
      }
      End(s);
    }
  }
}

Test(score_errors, of_inputs) {
  EXPECT_BREAKS(kSnap, s->job.inputs = NULL, "inputs.queries is NULL");
  EXPECT_BREAKS(kSnap, s->inputs.struct_size = 8, "struct_size 8");
  EXPECT_BREAKS(kSnap, s->inputs.queries = NULL, "inputs.queries is NULL");
  EXPECT_BREAKS(kSnap, s->inputs.n_query_rows = 7, "inputs.n_query_rows 7",
                "window 8");
  EXPECT_BREAKS(kSnap, s->queries.data = 0, "queries.data", "0");
  EXPECT_BREAKS(kSnap, s->queries.dtype = KVEVICT_DTYPE_F16, "queries.dtype",
                "1", "2");
  EXPECT_BREAKS(kSnap, s->queries.head_dim = 7, "queries.head_dim 7", "8");
  EXPECT_BREAKS(kSnap, s->queries.row_bytes = 3, "queries.row_bytes", "3");
  EXPECT_BREAKS(kSnap, s->queries.reserved[1] = 3, "queries.reserved", "3");
  EXPECT_BREAKS("custom", s->job.inputs = NULL, "inputs.scores is NULL");
  EXPECT_BREAKS("q-filter", s->job.inputs = NULL, "inputs.key_filter is NULL",
                "key filter");
  EXPECT_BREAKS("triattention", s->job.inputs = NULL,
                "inputs.query_centers is NULL", "query centers");
  EXPECT_BREAKS("random:sink=0,weight=given", s->inputs.token_weights = NULL,
                "token_weights", "NULL", "weight=given");
  EXPECT_BREAKS("non-causal", s->inputs.queries = NULL,
                "inputs.queries is NULL", "attention within chunks");
  EXPECT_BREAKS("non-causal", s->inputs.n_query_rows = 39,
                "inputs.n_query_rows 39 is not 0 or 40 slots held");
  EXPECT_BREAKS("non-causal", s->inputs.n_query_rows = 41,
                "inputs.n_query_rows 41 is not 0 or 40 slots held");
  /* h2o makes sums of queries where there are none. */
  const uint32_t counts[] = {40, 39};
  EXPECT_BREAKS("h2o", s->inputs.n_sum_heads = 3, "inputs.n_sum_heads 3",
                "n_q_heads 4", "n_kv_heads 2");
  EXPECT_BREAKS("h2o", s->inputs.attention_sums = s->inputs.queries = NULL,
                "inputs.attention_sums is NULL", "queries are NULL",
                "accumulated attention");
  EXPECT_BREAKS("h2o",
                (s->inputs.attention_sums = NULL, s->inputs.n_query_rows = 41),
                "inputs.n_query_rows 41 > 40");
  EXPECT_BREAKS("h2o",
                (s->inputs.attention_sums = NULL, s->job.token_counts = counts),
                "token_counts[1] 39 < 40");
}

Test(score_errors, of_reference_queries) {
  static const char kText[] = "snapkv:window=4,reference=2";
  EXPECT_BREAKS(kText, s->inputs.reference_queries = NULL,
                "inputs.reference_queries is NULL", "reference 2");
  EXPECT_BREAKS(kText, s->inputs.n_reference_rows = 3,
                "inputs.n_reference_rows 3 is not reference 2");
  EXPECT_BREAKS(kText, s->reference.head_dim = 7,
                "reference_queries.head_dim 7", "8");
  EXPECT_BREAKS(kText, s->reference.dtype = KVEVICT_DTYPE_F16,
                "reference_queries.dtype");
  EXPECT_BREAKS(kText, s->reference.head_stride_bytes = 0,
                "reference_queries.head_stride_bytes is 0 for 4 heads");
  EXPECT_BREAKS(kText, s->reference.token_stride_bytes = 0,
                "reference_queries.token_stride_bytes is 0 for 2 rows");
  EXPECT_BREAKS(kText, s->positions[1] = -1, "reference_positions[1] -1 < 0");
  EXPECT_BREAKS(kText,
                s->inputs.reference_positions =
                    (const int32_t*)(const void*)((char*)s->positions + 2),
                "reference_positions", "is not aligned to 4");
  /* Policies that take none say so. */
  static const char* const kOthers[][2] = {
      {"snapkv:window=4", "policy snapkv has reference 0"},
      {"knorm", "policy knorm has no reference queries"},
      {"non-causal:block=4", "policy non-causal has no reference queries"},
      {"h2o", "no reference queries"}};
  for (int i = 0; i < 4; ++i) {
    EXPECT_BREAKS(kOthers[i][0],
                  (s->inputs.n_reference_rows = 2,
                   s->inputs.reference_queries = &s->reference,
                   s->inputs.attention_sums = NULL),
                  "inputs.n_reference_rows 2", kOthers[i][1]);
  }
}

/* ---- Plans ---- */

static kvevict_status Plan(scene* s, const char* policy) {
  kvevict_plan* plan = NULL;
  const kvevict_status status = kvevict_plan_create(
      test_context(), &s->geometry, test_policy(policy), NULL, &plan);
  kvevict_plan_destroy(plan);
  return status;
}

/* `change` to a good geometry makes its plan fail. */
#define EXPECT_NO_PLAN(policy, change, ...)                     \
  do {                                                          \
    scene* s = Make("knorm");                                   \
    float sinks[kQ] = {0.0f};                                   \
    EXPECT_OK(Plan(s, policy));                                 \
    change;                                                     \
    EXPECT_INVALID(Plan(s, policy), "geometry: ", __VA_ARGS__); \
    (void)sinks;                                                \
    End(s);                                                     \
  } while (0)

Test(score_errors, of_geometries) {
  EXPECT_NO_PLAN("knorm", s->geometry.rope_inv_freq = NULL,
                 "rope_inv_freq is NULL", "3");
  EXPECT_NO_PLAN("knorm", s->geometry.rope_layout = (kvevict_rope_layout)2,
                 "rope_layout 2", "[0, 1]");
  EXPECT_NO_PLAN("knorm", s->geometry.rope_inv_freq_len = 257,
                 "rope_inv_freq_len 257", "256");
  EXPECT_NO_PLAN("knorm", s->inv_freq[1] = NAN, "rope_inv_freq[1]", "nan");
  EXPECT_NO_PLAN("knorm", s->inv_freq[1] = 65537.0f, "rope_inv_freq[1]",
                 "65537", "65536");
  EXPECT_NO_PLAN("knorm", s->layer.k_head_dim = 5, "rope_inv_freq_len 3",
                 "k_head_dim 5");
  static const char* const kRotated[][2] = {{"triattention", "query centers"},
                                            {"leverage", "leverage"},
                                            {"custom:leverage=1", "leverage"}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NO_PLAN(
        kRotated[i][0],
        (s->geometry.rope_inv_freq_len = 0, s->geometry.rope_inv_freq = NULL),
        "rope_inv_freq is NULL", kRotated[i][1]);
    if (i == 0) continue;
    EXPECT_NO_PLAN(kRotated[i][0], s->layer.k_head_dim = 257,
                   "k_head_dim 257 > 256", "leverage");
  }
  EXPECT_NO_PLAN("knorm", s->layer.logit_softcap = -1.0f,
                 "logit_softcap -1 is not a finite number >= 0");
  EXPECT_NO_PLAN("knorm", s->layer.logit_softcap = NAN, "logit_softcap nan");
  EXPECT_NO_PLAN(
      "knorm",
      (s->geometry.sink_logits = sinks, s->geometry.sink_logits_len = 3),
      "sink_logits_len 3 is not 4, the query heads of 1 layers");
  EXPECT_NO_PLAN("knorm", s->geometry.sink_logits_len = 4,
                 "sink_logits is NULL");
  const float kBad[] = {NAN, INFINITY};
  for (int i = 0; i < 2; ++i) {
    EXPECT_NO_PLAN("knorm",
                   (sinks[3] = kBad[i], s->geometry.sink_logits = sinks,
                    s->geometry.sink_logits_len = 4),
                   "sink_logits[3]", i == 0 ? "nan" : "inf");
  }
}

static void PlanAgain(scene* s, const char* policy) {
  kvevict_plan_destroy(s->plan);
  EXPECT_OK(kvevict_plan_create(test_context(), &s->geometry,
                                test_policy(policy), NULL, &s->plan));
  /* The first job's rows are not this plan's. */
  s->jobs = s->both + 1;
  s->jobs_len = 1;
}

/* Rows of a dtype that nothing can read. */
Test(score_errors, of_unreadable_rows) {
  static const struct {
    const char* policy;
    int which;
    const char* word;
  } kCases[] = {{kSnap, 0, "opaque"},
                {kSnap, 2, "opaque"},
                {"custom:sink=0,redundancy=0.5", 0, "k_dtype"},
                {"knorm:sink=0,weight=norm", 0, "k_dtype"},
                {"knorm:sink=0,weight=norm", 1, "v_head_dim is 0"}};
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    scene* s = Make("knorm");
    kvevict_layer_geometry* g = &s->layer;
    if (kCases[i].which == 0) g->k_dtype = KVEVICT_DTYPE_OPAQUE;
    if (kCases[i].which == 0) g->k_head_dim = 0;
    if (kCases[i].which == 1) g->v_head_dim = 0;
    if (kCases[i].which == 2) g->q_dtype = KVEVICT_DTYPE_OPAQUE;
    s->geometry.rope_inv_freq = NULL;
    s->geometry.rope_inv_freq_len = 0;
    PlanAgain(s, kCases[i].policy);
    if (kCases[i].which == 0) s->view.k.dtype = KVEVICT_DTYPE_OPAQUE;
    EXPECT_FAILS(Score(s), KVEVICT_ERROR_UNSUPPORTED, kCases[i].word);
    EXPECT_UNTOUCHED(s->scores);
    End(s);
  }
}

/* Scores may share no byte with K, V, biases or scales. */
Test(score_errors, scores_that_overlap_the_cache_are_errors) {
  enum { kRows = 32 };
  static struct {
    uint8_t k[kRows][kDim];
    float v[kRows][kDim], queries[8][kDim];
    float bias[kRows], scale[kRows], scores[kRows];
  } m;
  kvevict_layer_geometry layer = test_layer(1, 1, kDim, kDim);
  layer.k_dtype = KVEVICT_DTYPE_U8;
  layer.q_dtype = layer.v_dtype = KVEVICT_DTYPE_F32;
  const kvevict_geometry geometry = test_geometry(1, kRows, &layer);
  test_plan* p = test_plan_create("snapkv:window=8,sink=0", &geometry,
                                  KVEVICT_OPERATION_SCORE, 1);
  kvevict_plane numbers[2] = {
      kvevict_plane_token_major(m.bias, KVEVICT_DTYPE_F32, 1, 1),
      kvevict_plane_token_major(m.scale, KVEVICT_DTYPE_F32, 1, 1)};
  numbers[0].role = KVEVICT_ROLE_BIAS;
  numbers[1].role = KVEVICT_ROLE_KEY_SCALE;
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 1;
  view.k = kvevict_plane_token_major(m.k, KVEVICT_DTYPE_U8, 1, kDim);
  view.v = kvevict_plane_token_major(m.v, KVEVICT_DTYPE_F32, 1, kDim);
  view.companions = numbers;
  view.n_companions = 2;
  const kvevict_plane queries =
      kvevict_plane_head_major(m.queries, KVEVICT_DTYPE_F32, 8, kDim);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &queries;
  kvevict_score_job jobs[2] = {KVEVICT_SCORE_JOB_INIT, KVEVICT_SCORE_JOB_INIT};
  float apart[kRows];
  for (int i = 0; i < 2; ++i) {
    jobs[i].n_tokens = kRows;
    jobs[i].view = &view;
    jobs[i].inputs = &inputs;
    jobs[i].scores = i == 0 ? apart : m.scores;
    jobs[i].scores_len = kRows;
  }
  EXPECT_OK(test_score_jobs(p, jobs, 2));
  float* const bad[] = {(float*)&m.k[8], m.v[kRows - 1], m.bias + kRows - 1,
                        m.scale};
  for (int i = 0; i < 4; ++i) {
    memset(&m, 0, sizeof m);
    jobs[1].scores = bad[i];
    EXPECT_INVALID(test_score_jobs(p, jobs, 2), "jobs[1]: scores 0x",
                   "overlaps jobs[0]");
    for (size_t b = 0; b < sizeof m; ++b) {
      EXPECT(((const uint8_t*)&m)[b] == 0, "%d: byte %zu was written", i, b);
    }
  }
  test_plan_destroy(p);
}

/* ---- kvevict_policy_need() says what the call reads ---- */

static kvevict_need NeedOf(const char* policy, kvevict_input input) {
  kvevict_need need = -1;
  EXPECT_OK(kvevict_policy_need(test_policy(policy), input, &need));
  return need;
}

/* Planes are absent, or such that no call could read them. Keys and queries replace
 * sums that are absent. */
static void ExpectPlanesAsSaid(const char* text) {
#define ROW(input, name) \
  { input, offsetof(scene, inputs.name) }
  static const struct {
    kvevict_input input;
    size_t place;
  } kInputs[] = {ROW(KVEVICT_INPUT_QUERIES, queries),
                 ROW(KVEVICT_INPUT_ROW_LSE, row_lse),
                 ROW(KVEVICT_INPUT_SCORES, scores),
                 ROW(KVEVICT_INPUT_ATTENTION_SUMS, attention_sums),
                 ROW(KVEVICT_INPUT_QUERY_MEAN, query_mean),
                 ROW(KVEVICT_INPUT_QUERY_COVARIANCE, query_covariance),
                 ROW(KVEVICT_INPUT_KEY_FILTER, key_filter),
                 ROW(KVEVICT_INPUT_TOKEN_WEIGHTS, token_weights),
                 ROW(KVEVICT_INPUT_QUERY_CENTERS, query_centers)};
#undef ROW
  scene* s = Make(text);
  s->inputs.row_lse = &s->lse;
  EXPECT_OK(Score(s));
  for (size_t i = 0; i < sizeof kInputs / sizeof *kInputs; ++i) {
    const kvevict_need need = NeedOf(text, kInputs[i].input);
    const kvevict_plane** place = (void*)((char*)s + kInputs[i].place);
    const kvevict_plane* const good = *place;
    kvevict_plane unreadable = *good;
    unreadable.data = 0;
    *place = NULL;
    EXPECT((Score(s) == KVEVICT_OK) == (need != KVEVICT_NEED_REQUIRED),
           "%s, input %d absent: need %d", text, kInputs[i].input, need);
    *place = &unreadable;
    kvevict_status wrong = Score(s);
    if (wrong == KVEVICT_OK && need == KVEVICT_NEED_OPTIONAL) {
      s->inputs.attention_sums = NULL;
      wrong = Score(s);
      s->inputs.attention_sums = &s->sums;
    }
    EXPECT((wrong == KVEVICT_OK) == (need == KVEVICT_NEED_NONE),
           "%s, input %d unreadable: need %d, status %d", text,
           kInputs[i].input, need, wrong);
    *place = good;
  }
  End(s);
}

/* Keys or values have a dtype that nothing can read. */
static void ExpectRowsAsSaid(const char* text, bool values) {
  scene* s = Make(text);
  kvevict_plane* const rows = values ? &s->view.v : &s->view.k;
  rows->dtype = KVEVICT_DTYPE_OPAQUE;
  rows->head_dim = 0;
  rows->row_bytes = kDim * sizeof(float);
  *(values ? &s->layer.v_dtype : &s->layer.k_dtype) = rows->dtype;
  *(values ? &s->layer.v_head_dim : &s->layer.k_head_dim) = 0;
  PlanAgain(s, text);
  const kvevict_need need =
      NeedOf(text, values ? KVEVICT_INPUT_VALUES : KVEVICT_INPUT_KEYS);
  if (need == KVEVICT_NEED_OPTIONAL) s->inputs.attention_sums = NULL;
  EXPECT((Score(s) == KVEVICT_OK) == (need == KVEVICT_NEED_NONE),
         "%s, opaque %s: need %d", text, values ? "values" : "keys", need);
  End(s);
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
      ExpectPlanesAsSaid(text);
      ExpectRowsAsSaid(text, false);
      ExpectRowsAsSaid(text, true);
    }
    ++n;
  }
  cr_assert_gt(n, 10);
}
