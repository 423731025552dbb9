/* kvevict_attend() refuses these calls before it writes a byte. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"

enum {
  kHeads = 2,
  kGroup = 2,
  kQHeads = 4,
  kQueries = 3,
  kTokens = 70,
  kDim = 8
};

typedef struct memory {
  float k[kTokens][kHeads][kDim];
  float v[kTokens][kHeads][kDim];
  float q[kQueries][kQHeads][kDim];
  float out[kQueries][kQHeads][kDim];
  float lse[kQHeads][kQueries];
  float sums[kQHeads][kTokens];
  float sinks[kQHeads];
} memory;

static memory m;
static kvevict_context* context;
static kvevict_view view;
static kvevict_plane queries, out, lse, sums;
static kvevict_attention_job good;
static uint8_t workspace[1 << 20] __attribute__((aligned(64)));

static kvevict_plane PlaneOf(void* data, int64_t token, int64_t head,
                             uint32_t dim) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uintptr_t)data;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = dim;
  plane.token_stride_bytes = token * (int64_t)sizeof(float);
  plane.head_stride_bytes = head * (int64_t)sizeof(float);
  return plane;
}

static void Setup(void) {
  context = test_context();
  memset(&m, 0, sizeof m);
  for (int i = 0; i < kTokens * kHeads * kDim; ++i) {
    (&m.k[0][0][0])[i] = (float)(i * 7 % 13) / 13.0f;
    (&m.v[0][0][0])[i] = (float)(i * 5 % 17) - 8.0f;
  }
  for (int i = 0; i < kQueries * kQHeads * kDim; ++i) {
    (&m.q[0][0][0])[i] = (float)(i * 3 % 11) - 5.0f;
  }
  memset(m.out, TEST_GUARD, sizeof m.out);
  memset(m.lse, TEST_GUARD, sizeof m.lse);
  memset(m.sums, TEST_GUARD, sizeof m.sums);
  view = (kvevict_view)KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k = PlaneOf(m.k, kHeads * kDim, kDim, kDim);
  view.v = PlaneOf(m.v, kHeads * kDim, kDim, kDim);
  queries = PlaneOf(m.q, kQHeads * kDim, kDim, kDim);
  out = PlaneOf(m.out, kQHeads * kDim, kDim, kDim);
  lse = PlaneOf(m.lse, 1, kQueries, 1);
  sums = PlaneOf(m.sums, 1, kTokens, 1);
  good = (kvevict_attention_job)KVEVICT_ATTENTION_JOB_INIT;
  good.n_tokens = kTokens;
  good.view = &view;
  good.queries = &queries;
  good.out = &out;
  good.n_q_heads = kQHeads;
  good.n_queries = kQueries;
  good.row_lse = &lse;
  good.sink_logits = m.sinks;
  good.sink_logits_len = kQHeads;
}
TestSuite(attend_errors, .init = Setup);

static kvevict_status Call(const kvevict_attention_job* job) {
  return kvevict_attend(context, job, 1, workspace, sizeof workspace, NULL);
}

#define EXPECT_BAD(change, ...)                                         \
  do {                                                                  \
    kvevict_attention_job bad = good;                                   \
    kvevict_view bad_view = view;                                       \
    kvevict_plane bad_queries = queries, bad_out = out;                 \
    kvevict_plane bad_lse = lse, bad_sums = sums;                       \
    bad.view = &bad_view;                                               \
    bad.queries = &bad_queries;                                         \
    bad.out = &bad_out;                                                 \
    bad.row_lse = &bad_lse;                                             \
    (void)bad_sums;                                                     \
    change;                                                             \
    EXPECT_INVALID(Call(&bad), __VA_ARGS__);                            \
    EXPECT(test_is_filled(m.out, sizeof m.out), "out was written");     \
    EXPECT(test_is_filled(m.lse, sizeof m.lse), "lse was written");     \
    EXPECT(test_is_filled(m.sums, sizeof m.sums), "sums were written"); \
  } while (0)

Test(attend_errors, says_what_is_wrong_and_writes_nothing) {
  EXPECT_INVALID(kvevict_attend(NULL, &good, 1, workspace, 1, NULL), "context",
                 "NULL");
  EXPECT_INVALID(kvevict_attend(context, NULL, 1, workspace, 1, NULL), "jobs",
                 "NULL");
  EXPECT_INVALID(
      kvevict_attend(context, &good, KVEVICT_MAX_JOBS + 1, workspace, 1, NULL),
      "jobs_len 129", "128");
  EXPECT_OK(kvevict_attend(context, NULL, 0, NULL, 0, NULL));
  EXPECT_BAD(bad.view = NULL, "view", "NULL");
  EXPECT_BAD(bad.queries = NULL, "queries", "NULL");
  EXPECT_BAD(bad.out = NULL, "out", "NULL");
  EXPECT_BAD(
      (bad.n_q_heads = 0, bad.sink_logits = NULL, bad.sink_logits_len = 0),
      "n_q_heads 0", "[1, 65535]");
  EXPECT_BAD((bad.n_q_heads = 5, bad.sink_logits_len = 5), "n_q_heads 5",
             "multiple", "n_kv_heads 2");
  EXPECT_BAD(bad.n_tokens = 1u << 31, "n_tokens 2147483648", "2147483647");
  EXPECT_BAD(bad.v_head_dim = 7, "v_head_dim 7", "8");
  EXPECT_BAD(
      (bad_view.v = (kvevict_plane)KVEVICT_PLANE_INIT, bad.v_head_dim = 9),
      "v_head_dim 9 > 8", "no v");
  EXPECT_BAD(bad.non_causal = 2, "non_causal 2");
  EXPECT_BAD(bad.softmax_scale = -1.0f, "softmax_scale -1");
  EXPECT_BAD(bad.softmax_scale = NAN, "softmax_scale nan");
  EXPECT_BAD(bad.logit_softcap = INFINITY, "logit_softcap inf");
  EXPECT_BAD(bad.n_sum_heads = 3, "n_sum_heads 3", "n_q_heads 4",
             "n_kv_heads 2");
  EXPECT_BAD(bad.sink_logits_len = 3, "sink_logits_len 3 is not 4");
  EXPECT_BAD(bad.sink_logits = NULL, "sink_logits_len 4 is not 0", "NULL");
  EXPECT_BAD(bad_view.n_kv_heads = 0, "view: n_kv_heads 0");
  EXPECT_BAD(bad_view.k = (kvevict_plane)KVEVICT_PLANE_INIT, "view: k.data");
  EXPECT_BAD(bad_queries.data = 0, "queries.data is 0");
  EXPECT_BAD(bad_queries.head_dim = 7, "queries.head_dim 7 is not 8");
  EXPECT_BAD(bad_queries.dtype = 77, "queries.dtype 77 is no dtype");
  EXPECT_BAD(bad_out.head_dim = 9, "out.head_dim 9 is not 8");
  EXPECT_BAD(bad_out.token_stride_bytes = 4, "out: rows of 8 elements overlap",
             "token_stride_bytes 4");
  EXPECT_BAD(bad_lse.dtype = KVEVICT_DTYPE_F16, "row_lse.dtype");
  EXPECT_BAD(bad_lse.head_dim = 2, "row_lse.head_dim 2 is not 1");
  EXPECT_BAD(bad_lse.data += 2, "row_lse", "multiples of 4");
  EXPECT_BAD(bad_lse.head_stride_bytes = 0, "row_lse: rows of 1 elements");
  const uint32_t counts[kHeads] = {3, kTokens + 1};
  EXPECT_BAD(bad.token_counts = counts, "token_counts[1] 71 > 70");
  EXPECT_BAD((bad_sums.head_stride_bytes = 4, bad.attention_sums = &bad_sums),
             "attention_sums: rows of 1 elements");
  EXPECT_OK(Call(&good));
}

/* An output may share no byte with anything else that is read or written. */
Test(attend_errors, refuses_outputs_that_overlap) {
  EXPECT_BAD(bad_out.data = queries.data, "jobs[0].out overlaps",
             "jobs[0].queries");
  EXPECT_BAD(bad_out.data = (uintptr_t)&m.v[60], "jobs[0].out overlaps",
             "jobs[0].view");
  EXPECT_BAD(bad_lse.data = (uintptr_t)m.sinks, "jobs[0].row_lse overlaps",
             "jobs[0].sink_logits");
  EXPECT_BAD(bad_lse.data = out.data, "overlaps", "jobs[0].out");
  EXPECT_BAD((bad_sums.data = (uintptr_t)m.k, bad.attention_sums = &bad_sums),
             "jobs[0].attention_sums overlaps jobs[0].view");
  kvevict_attention_job two[2] = {good, good};
  two[1].row_lse = NULL;
  EXPECT_INVALID(
      kvevict_attend(context, two, 2, workspace, sizeof workspace, NULL),
      "jobs[0].out overlaps jobs[1].out");
  EXPECT(test_is_filled(m.out, sizeof m.out), "out was written");
}

/* Biases and scales are read too, and may lie between results. */
Test(attend_errors, refuses_outputs_over_companions) {
  static float numbers[kTokens][kHeads][2];
  static uint8_t codes[kTokens][kHeads][kDim];
  for (int is_scale = 0; is_scale < 2; ++is_scale) {
    for (int i = 0; i < kTokens * kHeads * 2; ++i) {
      (&numbers[0][0][0])[i] = 0.5f;
    }
    kvevict_plane of_rows = PlaneOf(numbers, kHeads * 2, 2, 1);
    of_rows.role = is_scale ? KVEVICT_ROLE_KEY_SCALE : KVEVICT_ROLE_BIAS;
    view.companions = &of_rows;
    view.n_companions = 1;
    if (is_scale) {
      view.k = PlaneOf(codes, 0, 0, kDim);
      view.k.dtype = KVEVICT_DTYPE_U8;
      view.k.token_stride_bytes = kHeads * kDim;
      view.k.head_stride_bytes = kDim;
    }
    EXPECT_BAD(bad_out.data = of_rows.data,
               "jobs[0].out overlaps jobs[0].view");
    EXPECT_BAD(bad_lse.data = (uintptr_t)&numbers[3][1],
               "jobs[0].row_lse overlaps jobs[0].view");
    kvevict_plane between = PlaneOf(&numbers[0][0][1], kHeads * 2, 2, 1);
    kvevict_attention_job job = good;
    job.attention_sums = &between;
    job.n_sum_heads = kHeads;
    EXPECT_BAD((bad_sums = between, bad_sums.data = of_rows.data,
                bad.n_sum_heads = kHeads, bad.attention_sums = &bad_sums),
               "jobs[0].attention_sums overlaps jobs[0].view");
    for (int i = 0; i < kTokens * kHeads; ++i) {
      EXPECT((&numbers[0][0][0])[2 * i] == 0.5f, "number %d was written", i);
    }
    EXPECT_OK(Call(&job));
    memset(m.out, TEST_GUARD, sizeof m.out);
    memset(m.lse, TEST_GUARD, sizeof m.lse);
  }
}

/* The workspace is written first, so no input may lie in it. */
Test(attend_errors, refuses_a_workspace_that_overlaps) {
  kvevict_workspace needs = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_attend_workspace(context, &good, 1, &needs));
  EXPECT(needs.least_bytes > 64, "%zu bytes", needs.least_bytes);
  uint8_t* const last = workspace + needs.least_bytes - 64;
  kvevict_plane bias = PlaneOf(last, 0, kTokens, 1);
  bias.role = KVEVICT_ROLE_BIAS;
  bias.token_stride_bytes = sizeof(float);
  memset(workspace, 0, sizeof workspace);
  for (int part = 0; part < 5; ++part) {
    kvevict_attention_job job = good;
    kvevict_view of_job = view;
    kvevict_plane moved = part == 3 ? queries : out;
    moved.data = (uintptr_t)last;
    job.view = &of_job;
    if (part == 0) of_job.k.data = moved.data;
    if (part == 1) of_job.v.data = moved.data;
    if (part == 2) of_job.companions = &bias, of_job.n_companions = 1;
    if (part == 3) job.queries = &moved;
    if (part == 4) job.out = &moved;
    EXPECT_INVALID(
        kvevict_attend(context, &job, 1, workspace, needs.least_bytes, NULL),
        "workspace 0x", "overlaps jobs[0]");
    for (size_t i = 0; i < sizeof workspace; ++i) {
      EXPECT(workspace[i] == 0, "part %d: byte %zu was written", part, i);
    }
    EXPECT(test_is_filled(m.out, sizeof m.out), "out was written");
    /* Behind it there is room. */
    bias.data = moved.data += 64;
    if (part == 0) of_job.k.data = moved.data;
    if (part == 1) of_job.v.data = moved.data;
    EXPECT_OK(
        kvevict_attend(context, &job, 1, workspace, needs.least_bytes, NULL));
    bias.data = (uintptr_t)last;
    memset(workspace, 0, sizeof workspace);
    memset(m.out, TEST_GUARD, sizeof m.out);
    memset(m.lse, TEST_GUARD, sizeof m.lse);
  }
}

/* Queries and results alternate in one tensor, and jobs share caches. */
Test(attend_errors, takes_outputs_between_inputs) {
  static float both[kQueries][kQHeads][2][kDim];
  static float other[kQueries][kQHeads][kDim];
  for (int i = 0; i < kQueries * kQHeads; ++i) {
    memcpy(both[i / kQHeads][i % kQHeads][0], m.q[i / kQHeads][i % kQHeads],
           sizeof m.q[0][0]);
  }
  kvevict_plane in = PlaneOf(both, kQHeads * 2 * kDim, 2 * kDim, kDim);
  kvevict_plane to =
      PlaneOf(&both[0][0][1], kQHeads * 2 * kDim, 2 * kDim, kDim);
  kvevict_plane apart = PlaneOf(other, kQHeads * kDim, kDim, kDim);
  kvevict_attention_job two[2] = {good, good};
  two[0].queries = &in;
  two[0].out = &to;
  two[1].out = &apart;
  two[1].row_lse = NULL;
  EXPECT_OK(kvevict_attend(context, two, 2, workspace, sizeof workspace, NULL));
  for (int i = 0; i < kQueries * kQHeads; ++i) {
    EXPECT(memcmp(both[i / kQHeads][i % kQHeads][1],
                  other[i / kQHeads][i % kQHeads], sizeof other[0][0]) == 0,
           "row %d differs", i);
  }
}

Test(attend_errors, needs_its_workspace) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_INVALID(kvevict_attend_workspace(context, &good, 1, NULL), "out",
                 "NULL");
  EXPECT_OK(kvevict_attend_workspace(context, &good, 1, &size));
  EXPECT(size.alignment == 64 && size.least_bytes > 0 &&
             size.least_bytes <= size.best_bytes,
         "%u, %zu, %zu", size.alignment, size.least_bytes, size.best_bytes);
  EXPECT_INVALID(
      kvevict_attend(context, &good, 1, workspace, size.least_bytes - 1, NULL),
      "workspace_bytes", "the least");
  EXPECT_INVALID(
      kvevict_attend(context, &good, 1, NULL, size.least_bytes, NULL),
      "workspace is NULL");
  EXPECT_INVALID(
      kvevict_attend(context, &good, 1, workspace + 4, size.least_bytes, NULL),
      "64-byte aligned");
  EXPECT(test_is_filled(m.out, sizeof m.out), "out was written");
  /* A size query needs no memory. */
  kvevict_attention_job job = good;
  kvevict_view far = view;
  far.k.data = 16;
  far.v.data = (uint64_t)1 << 40;
  job.view = &far;
  EXPECT_OK(kvevict_attend_workspace(context, &job, 1, &size));
}

Test(attend_errors, init_and_struct_size) {
  GROWN(kvevict_attention_job) grown;
  grown.value = good;
  EXPECT_CHECKS_STRUCT_SIZE(grown, Call(&grown.value));
}

/* All logits are -infinity, so nothing is seen. */
Test(attend_errors, all_minus_infinity_gives_zeros) {
  good.sink_logits = NULL;
  good.sink_logits_len = 0;
  for (int i = 0; i < kQueries * kQHeads * kDim; ++i) (&m.q[0][0][0])[i] = 1.0f;
  for (int t = 0; t < kTokens; ++t) m.k[t][0][0] = -INFINITY;
  EXPECT_OK(Call(&good));
  EXPECT(m.out[0][0][0] == 0.0f && m.lse[0][0] == -INFINITY, "head 0");
  EXPECT(m.lse[2][0] > -100.0f, "head 2");
}
