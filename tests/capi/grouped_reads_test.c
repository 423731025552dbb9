/* KIVI-style caches are scored as what their rows stand for. paged_test.c attends to them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/plan.h"

static kvevict_context* context;

static void CreateContext(void) { context = test_grouped_context(); }
TestSuite(grouped_reads, .init = CreateContext);

/* A cache, and an f32 cache with what its rows stand for. */
typedef struct both {
  test_grouped* cache;
  test_plain plain;
  uint32_t n;
} both;

static both MakeBoth(test_random* random, uint32_t n) {
  test_grouped_spec spec = test_grouped_draw(random);
  spec.dim = 64;
  both b = {.n = n};
  b.cache = test_grouped_filled(context, spec, n, random, true);
  b.plain = test_grouped_read(context, b.cache, n);
  return b;
}
static void DestroyBoth(both* b) {
  test_plain_free(&b->plain);
  test_grouped_destroy(b->cache);
}

static const char* const kPolicies[] = {"knorm:budget=40",
                                        "keydiff:budget=40",
                                        "snapkv:budget=40,window=8",
                                        "lagkv:budget=40,sink=2,block=8",
                                        "cur:budget=40",
                                        "r-kv:budget=40"};

static test_plan* PlanOf(const test_grouped_spec* spec, kvevict_dtype dtype,
                         const char* policy, kvevict_operation operation) {
  kvevict_layer_geometry layer =
      test_layer(2 * spec->n_heads, spec->n_heads, spec->dim, spec->dim);
  layer.k_dtype = layer.v_dtype = dtype;
  const kvevict_geometry geometry = test_geometry(1, 100, &layer);
  return test_plan_create(policy, &geometry, operation, 1);
}

static void ScoreBy(const char* policy, const both* b, bool grouped,
                    float* queries, float* scores) {
  const test_grouped_spec* spec = &b->cache->spec;
  test_plan* plan = PlanOf(spec, grouped ? spec->dtype : KVEVICT_DTYPE_F32,
                           policy, KVEVICT_OPERATION_SCORE);
  const kvevict_plane rows =
      kvevict_plane_head_major(queries, KVEVICT_DTYPE_F32, 8, 64);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &rows;
  kvevict_score_job job =
      test_score_job(b->n, grouped ? &b->cache->view : &b->plain.view, &inputs,
                     scores, spec->n_heads);
  EXPECT_OK(test_score_jobs(plan, &job, 1));
  test_plan_destroy(plan);
}

Test(grouped_reads, scores_are_those_of_what_rows_stand_for) {
  test_random random = test_random_start("grouped score");
  static float queries[6 * 8 * 64];
  for (size_t i = 0; i < sizeof queries / 4; ++i) {
    queries[i] = test_random_normal(&random);
  }
  for (size_t p = 0; p < sizeof kPolicies / sizeof *kPolicies; ++p) {
    for (int i = 0; i < 6; ++i) {
      both b = MakeBoth(&random, test_random_between(&random, 41, 80));
      float ours[3 * 80], theirs[3 * 80];
      ScoreBy(kPolicies[p], &b, true, queries, ours);
      ScoreBy(kPolicies[p], &b, false, queries, theirs);
      for (uint32_t s = 0; s < b.cache->spec.n_heads * b.n; ++s) {
        EXPECT(ours[s] == theirs[s] ||
                   fabsf(ours[s] - theirs[s]) <= 1e-4f * (1 + fabsf(theirs[s])),
               "%s: score %u: %g is not %g", kPolicies[p], s, ours[s],
               theirs[s]);
      }
      DestroyBoth(&b);
    }
  }
}
