/* KIVI-style paged caches: sequences against models of their own after every
 * operation, and attention to them. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_pool.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/oracle/attention.h"

/* ---- Attention to what rows stand for, in double precision ---- */

static void Attend(test_pool* s, const test_pooled* a, uint32_t l) {
  const uint32_t n = a->n_slots[l], dim = s->dim,
                 n_heads = 2 * test_pool_heads[l];
  if (n == 0 || !test_pool_has_values(l)) return;
  float queries[6 * TEST_POOL_DIM], out[6 * TEST_POOL_DIM];
  for (uint32_t i = 0; i < n_heads * dim; ++i) {
    queries[i] = test_random_normal(s->random);
  }
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uintptr_t)queries;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = dim;
  plane.token_stride_bytes = plane.head_stride_bytes = dim * sizeof(float);
  kvevict_plane out_plane = plane;
  out_plane.data = (uintptr_t)out;
  const kvevict_view view = test_pool_view(a, l);
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
  job.n_tokens = n;
  job.view = &view;
  job.queries = &plane;
  job.out = &out_plane;
  job.n_q_heads = n_heads;
  job.n_queries = 1;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_attend_workspace(s->context, &job, 1, &size));
  void* const workspace = aligned_alloc(64, (size.best_bytes + 127) / 64 * 64);
  EXPECT_OK(
      kvevict_attend(s->context, &job, 1, workspace, size.best_bytes, NULL));
  free(workspace);
  for (uint32_t h = 0; h < n_heads; ++h) {
    double wanted[TEST_POOL_DIM], tolerance[TEST_POOL_DIM];
    const oracle_query in = {
        .query = queries + h * dim,
        .keys = test_grouped_row(a->held[l], 0, h / 2, 0),
        .values = test_grouped_row(a->held[l], 1, h / 2, 0),
        .n_tokens = n,
        .k_dim = dim,
        .v_dim = dim,
        .value_stride = dim,
        .slot = n - 1,
        .scale = 1.0 / sqrt(dim)};
    oracle_attended attended = {.out = wanted, .out_tolerance = tolerance};
    oracle_attend(&in, &attended);
    for (uint32_t e = 0; e < dim; ++e) {
      const double by = fabs((double)out[h * dim + e] - wanted[e]);
      EXPECT(by <= tolerance[e], "head %u, element %u: %g, not %g", h, e,
             (double)out[h * dim + e], wanted[e]);
    }
  }
}

static void Live(test_pool* s, uint32_t n_steps) {
  for (uint32_t step = 0; step < n_steps; ++step) {
    const uint32_t what = test_random_below(s->random, 18);
    test_pooled* const a =
        s->n_sequences == 0
            ? NULL
            : &s->sequences[test_random_below(s->random, s->n_sequences)];
    if (a == NULL || (what == 0 && s->n_sequences < TEST_POOL_MOST)) {
      test_pool_add(s);
    } else if (what == 1 && s->n_sequences < TEST_POOL_MOST) {
      test_pool_fork(s, a);
    } else if (what == 2 && s->n_sequences > 2) {
      test_pool_remove(s, (uint32_t)(a - s->sequences));
    } else if (what < 10) {
      test_pool_append(s, a, what < 7 ? 3 : 70);
    } else if (what < 12) {
      test_pool_trim(s, a);
    } else if (what < 14) {
      test_pool_overwrite(s, a);
    } else if (what < 16) {
      test_pool_evict(s);
    } else {
      Attend(s, a, test_random_below(s->random, TEST_POOL_LAYERS));
    }
    test_pool_check(s);
  }
}

Test(paged_grouped, holds_what_each_sequence_would_hold_alone) {
  static const char* const kPolicies[] = {
      "knorm:budget=64,sink=2,scope=layer",
      "knorm:budget=62,sink=1,recent=3,scope=head",
      "streaming-llm:budget=70,sink=4",
      "random:budget=64,sink=0,select_block=8,scope=layer",
      "keydiff:budget=64,sink=2,scope=head",
      "none"};
  test_random random = test_random_start("paged grouped");
  test_pool* const s = malloc(sizeof *s);
  uint32_t n_short = 0, n_evicted = 0;
  for (uint32_t i = 0; i < 72; ++i) {
    test_pool_begin(s, &random, kPolicies[i % 6]);
    Live(s, 60);
    test_pool_end(s);
    n_short += s->n_short;
    n_evicted += s->n_evicted;
  }
  EXPECT(n_short > 0 && n_evicted > 0, "%u short of blocks, %u evicted",
         n_short, n_evicted);
  free(s);
}
