/* kvevict_score() refuses these calls. */
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/scene.h"

/* `change` to a valid call makes it fail with `code`; nothing is written. */
#define EXPECT_BREAKS_WITH(code, change, ...)                                 \
  do {                                                                        \
    test_scene_spec spec = test_scene_of("snapkv:window=8", 4, 2, 16, 40);    \
    spec.q_dtype = KVEVICT_DTYPE_F16;                                         \
    spec.layout = TEST_PAGED_3;                                               \
    test_scene* s = test_scene_create(&spec, 10);                             \
    float scores_array[80], *scores = scores_array;                           \
    GUARD(scores_array);                                                      \
    const kvevict_plan* plan = s->plan->plan;                                 \
    kvevict_plane queries = s->queries, *q = &queries;                        \
    kvevict_view view = s->cache->view, *v = &view;                           \
    uint32_t n_tokens = 40;                                                   \
    size_t scores_len = 80, jobs_len = 1, bytes = s->plan->workspace_bytes;   \
    char* workspace = s->plan->workspace;                                     \
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;                \
    const kvevict_signal_inputs* in = &inputs;                                \
    kvevict_score_job job = KVEVICT_SCORE_JOB_INIT, *jobs = &job;             \
    change;                                                                   \
    inputs.queries = q;                                                       \
    job.n_tokens = n_tokens;                                                  \
    job.view = v;                                                             \
    job.inputs = in;                                                          \
    job.scores = scores;                                                      \
    job.scores_len = scores_len;                                              \
    EXPECT_FAILS(kvevict_score(plan, jobs, jobs_len, workspace, bytes, NULL), \
                 code, __VA_ARGS__);                                          \
    EXPECT_UNTOUCHED(scores_array);                                           \
    (void)queries, (void)view;                                                \
    test_scene_destroy(s);                                                    \
  } while (0)
#define EXPECT_BREAKS(change, ...) \
  EXPECT_BREAKS_WITH(KVEVICT_ERROR_INVALID_ARGUMENT, change, __VA_ARGS__)

Test(score, null_pointers_are_errors) {
  EXPECT_BREAKS(plan = NULL, "plan", "NULL");
  EXPECT_BREAKS(jobs = NULL, "jobs", "NULL");
  EXPECT_BREAKS(in = NULL, "inputs.queries is NULL");
  EXPECT_BREAKS(q = NULL, "inputs.queries is NULL");
  EXPECT_BREAKS(v = NULL, "view", "NULL");
  EXPECT_BREAKS(scores = NULL, "scores", "NULL");
  EXPECT_BREAKS(workspace = NULL, "workspace", "NULL");
}

Test(score, wrong_sizes_are_errors) {
  EXPECT_BREAKS((n_tokens = 7, scores_len = 14), "n_tokens 7", "8");
  EXPECT_BREAKS((n_tokens = 0, scores_len = 0), "n_tokens 0", "8");
  EXPECT_BREAKS((n_tokens = 44, scores_len = 88), "n_tokens 44",
                "max_tokens 43");
  EXPECT_BREAKS(scores_len = 79, "scores_len 79", "40");
  EXPECT_BREAKS(scores_len = 81, "scores_len 81", "40");
  EXPECT_BREAKS(
      bytes = test_workspace(plan, KVEVICT_OPERATION_SCORE, 40).least_bytes - 1,
      "workspace_bytes", "the least");
  EXPECT_BREAKS(workspace += 32, "workspace", "64");
  EXPECT_BREAKS(jobs_len = KVEVICT_MAX_JOBS + 1, "jobs_len 129", "128");
}

Test(score, queries_that_do_not_match_are_errors) {
  EXPECT_BREAKS(queries.data = 0, "queries.data", "0");
  EXPECT_BREAKS(queries.dtype = KVEVICT_DTYPE_F32, "queries.dtype", "1", "2");
  EXPECT_BREAKS(queries.head_dim = 15, "queries.head_dim 15", "16");
  EXPECT_BREAKS(queries.row_bytes = 3, "queries.row_bytes", "3");
  EXPECT_BREAKS(queries.reserved[1] = 3, "queries.reserved", "3");
}

Test(score, views_that_do_not_match_are_errors) {
  EXPECT_BREAKS(view.n_kv_heads = 1, "n_kv_heads 1", "2");
  EXPECT_BREAKS(
      (view.k.dtype = KVEVICT_DTYPE_BF16, view.k.element_stride_bytes = 0),
      "k.dtype", "3", "1");
  EXPECT_BREAKS(view.k.head_dim = 8, "k.head_dim 8", "16");
  EXPECT_BREAKS(view.k.data = 0, "k.data");
  EXPECT_BREAKS(view.block_table_len = 13, "block_table_len 13");
  EXPECT_BREAKS(view.struct_size = 4, "struct_size", "4");
}

/* Token counts, the layer, and inputs that only other signals read. */
Test(score, other_inputs_are_checked) {
  EXPECT_BREAKS(job.layer = 1, "jobs[0]", "layer 1", "n_layers 1");
  EXPECT_BREAKS(job.n_seen = 3, "n_seen 3", "40");
  EXPECT_BREAKS(job.struct_size = 8, "jobs[0]", "struct_size 8");
  EXPECT_BREAKS(inputs.struct_size = 8, "struct_size 8");
  const uint32_t more[] = {40, 41}, fewer[] = {40, 7};
  EXPECT_BREAKS(job.token_counts = more, "token_counts[1] 41", "40");
  EXPECT_BREAKS(job.token_counts = fewer, "token_counts[1] 7", "8");
}

static test_plan* SmallPlan(const char* policy) {
  const kvevict_layer_geometry layer = test_layer(1, 1, 4, 0);
  const kvevict_geometry geometry = test_geometry(1, 10, &layer);
  return test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
}

/* A policy that ranks nothing cannot be scored. */
Test(score, policies_that_rank_nothing_are_errors) {
  const char* const kNot[] = {"streaming-llm", "none"};
  for (int i = 0; i < 2; ++i) {
    test_plan* p = SmallPlan(kNot[i]);
    const kvevict_view view = KVEVICT_VIEW_INIT;
    float scores[10];
    GUARD(scores);
    EXPECT_INVALID(test_score(p, NULL, &view, 10, scores, 10), "policy",
                   "nothing to score");
    EXPECT_UNTOUCHED(scores);
    test_plan_destroy(p);
  }
}

Test(score, unreadable_keys_and_queries_are_unsupported) {
  for (int which = 0; which < 2; ++which) {
    kvevict_layer_geometry layer = test_layer(1, 1, which == 0 ? 0 : 4, 0);
    layer.k_dtype = which == 0 ? KVEVICT_DTYPE_OPAQUE : KVEVICT_DTYPE_F32;
    layer.q_dtype = which == 0 ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_OPAQUE;
    const kvevict_geometry geometry = test_geometry(1, 10, &layer);
    test_plan* p = test_plan_create("snapkv:window=2", &geometry,
                                    KVEVICT_OPERATION_SCORE, 1);
    test_random random = {1};
    const test_cache_spec spec = {TEST_TOKEN_MAJOR,  1, 10, layer.k_dtype, 4,
                                  KVEVICT_DTYPE_F32, 0, 0};
    test_cache* cache = test_cache_create(&spec, &random);
    float scores[10];
    GUARD(scores);
    EXPECT_FAILS(test_score(p, &cache->view.k, &cache->view, 10, scores, 10),
                 KVEVICT_ERROR_UNSUPPORTED, "opaque");
    EXPECT_UNTOUCHED(scores);
    test_cache_destroy(cache);
    test_plan_destroy(p);
  }
}

static kvevict_score_job SmallJob(float* scores) {
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = 10;
  job.scores = scores;
  job.scores_len = 10;
  return job;
}

/* Inputs that a policy's signal does not read may be absent. */
Test(score, random_needs_no_view) {
  test_plan* p = SmallPlan("random:sink=0,budget=5");
  float scores[10] = {0};
  const kvevict_score_job job = SmallJob(scores);
  EXPECT_OK(test_score_jobs(p, &job, 1));
  cr_assert(scores[0] != scores[9], "drawn numbers");
  test_plan_destroy(p);
}

/* The caller's scores need a row per head, with tokens packed. */
Test(score, scores_that_do_not_match_are_errors) {
#define EXPECT_CUSTOM_BREAKS(change, ...)                                     \
  do {                                                                        \
    test_plan* p = SmallPlan("custom:sink=0,pool=max3");                      \
    float given[10] = {0}, scores[10];                                        \
    GUARD(scores);                                                            \
    kvevict_plane plane = test_floats_plane(given, 10), *at = &plane;         \
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT, *in = &inputs; \
    change;                                                                   \
    inputs.scores = at;                                                       \
    kvevict_score_job job = SmallJob(scores);                                 \
    job.inputs = in;                                                          \
    EXPECT_INVALID(test_score_jobs(p, &job, 1), __VA_ARGS__);                 \
    EXPECT_UNTOUCHED(scores);                                                 \
    (void)plane;                                                              \
    test_plan_destroy(p);                                                     \
  } while (0)
  EXPECT_CUSTOM_BREAKS(in = NULL, "scores", "NULL");
  EXPECT_CUSTOM_BREAKS(at = NULL, "scores", "NULL");
  EXPECT_CUSTOM_BREAKS(plane.data = 0, "scores.data", "0");
  EXPECT_CUSTOM_BREAKS(plane.dtype = KVEVICT_DTYPE_F16, "scores.dtype f16");
  EXPECT_CUSTOM_BREAKS(plane.head_dim = 2, "scores.head_dim 2");
  EXPECT_CUSTOM_BREAKS(plane.token_stride_bytes = 8, "scores.token_stride", "8",
                       "4");
  EXPECT_CUSTOM_BREAKS(plane.reserved[3] = 7, "scores.reserved", "7");
}

/* Scores may share no byte with K, V, biases or scales. */
Test(score, scores_that_overlap_the_cache_are_errors) {
  enum { kTokens = 32, kDim = 8 };
  static struct {
    uint8_t k[kTokens][kDim];
    float v[kTokens][kDim], queries[8][kDim];
    float bias[kTokens], scale[kTokens], scores[kTokens];
  } m;
  kvevict_layer_geometry layer = test_layer(1, 1, kDim, kDim);
  layer.k_dtype = KVEVICT_DTYPE_U8;
  layer.q_dtype = layer.v_dtype = KVEVICT_DTYPE_F32;
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
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
  float apart[kTokens];
  for (int i = 0; i < 2; ++i) {
    jobs[i].n_tokens = kTokens;
    jobs[i].view = &view;
    jobs[i].inputs = &inputs;
    jobs[i].scores = i == 0 ? apart : m.scores;
    jobs[i].scores_len = kTokens;
  }
  EXPECT_OK(test_score_jobs(p, jobs, 2));
  float* const bad[] = {(float*)&m.k[8], m.v[kTokens - 1], m.bias + kTokens - 1,
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

/* Rows do not all read head 0's. */
Test(score, scores_without_strides_are_packed) {
  const kvevict_layer_geometry layer = test_layer(3, 3, 4, 0);
  const kvevict_geometry geometry = test_geometry(1, 10, &layer);
  test_plan* p = test_plan_create("custom:sink=0,pool=max3", &geometry,
                                  KVEVICT_OPERATION_SCORE, 1);
  float given[3 * 10], packed[3 * 10], scores[3 * 10];
  for (int i = 0; i < 30; ++i) given[i] = (float)((i * 17) % 30);
  kvevict_plane plane = test_floats_plane(given, 10);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.scores = &plane;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = 10;
  job.inputs = &inputs;
  job.scores_len = 30;
  job.scores = packed;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  plane.token_stride_bytes = plane.head_stride_bytes = 0;
  job.scores = scores;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  cr_assert_arr_eq(scores, packed, sizeof scores);
  test_plan_destroy(p);
}
