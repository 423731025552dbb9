/* KIVI-style caches store, read and move rows byte by byte as the oracle does, on any
 * target, and are scored as what their rows stand for. paged_test.c attends to them. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/plan.h"

/* One that multiplies and adds at once, as the oracle reads codes. */
static kvevict_context* FusedContext(test_random* random) {
  test_any_context with = test_draw_context(random);
  for (int tries = 0; !with.is_fused && tries < 60; ++tries) {
    with = test_draw_context(random);
  }
  return with.context;
}

static void ExpectReads(kvevict_context* context, const test_grouped* c,
                        uint32_t n) {
  test_plain p = test_grouped_read(context, c, n);
  for (int v = 0; v < 2; ++v) {
    for (uint32_t h = 0; h < c->spec.n_heads; ++h) {
      for (uint32_t i = 0; i < n; ++i) {
        test_grouped_expect_row(test_plain_row(&p, v, h, i),
                                test_grouped_row(c, v, h, i), c->spec.dim,
                                "read", i);
      }
    }
  }
  test_plain_free(&p);
}

/* Groups that one call fills need no code to be read. Its other cache may have numbers of
 * another dtype. */
Test(grouped, rows_are_stored_by_groups_on_every_target) {
  test_random random = test_random_start("grouped targets");
  for (uint32_t i = 0; i < 100; ++i) {
    if (!test_runs(i)) continue;
    test_grouped_spec spec = test_grouped_draw(&random);
    const uint32_t n = test_random_between(&random, 1, 80);
    test_grouped *ours[2], *theirs[2];
    test_plain plain[2];
    kvevict_move moves[2] = {KVEVICT_MOVE_INIT, KVEVICT_MOVE_INIT};
    for (int j = 0; j < 2; ++j) {
      ours[j] = test_grouped_create(&spec, &random);
      ours[j]->view.first_recent = spec.has_recent ? 20 : 0;
      theirs[j] = test_grouped_clone(ours[j]);
      plain[j] = test_plain_make(&spec, n);
      test_plain_draw(&plain[j], spec.dim, &random, false);
      test_grouped_store_all(theirs[j], &plain[j], 0);
      moves[j].n_tokens = n;
      moves[j].view = &plain[j].view;
      moves[j].destination = &ours[j]->view;
      kvevict_dtype* const all[] = {&spec.scale, &spec.minimum, &spec.recent};
      *all[test_random_below(&random, 3)] = KVEVICT_DTYPE_F16;
    }
    kvevict_context* const context = test_draw_context(&random).context;
    EXPECT_OK(kvevict_compact(context, moves, 2, NULL, 0, NULL));
    for (int j = 0; j < 2; ++j) {
      test_grouped_expect_same(ours[j], theirs[j], n, "stored");
      test_plain_free(&plain[j]);
      test_grouped_destroy(ours[j]);
      test_grouped_destroy(theirs[j]);
    }
  }
}

Test(grouped, rows_are_stored_by_groups_and_read) {
  test_random random = test_random_start("grouped store");
  for (uint32_t i = 0; i < 300; ++i) {
    if (!test_runs(i)) continue;
    kvevict_context* const context = FusedContext(&random);
    const uint32_t n = test_random_between(&random, 1, 80);
    test_grouped* c =
        test_grouped_filled(context, test_grouped_draw(&random), n, &random,
                            test_random_coin(&random));
    ExpectReads(context, c, n);
    test_grouped_destroy(c);
  }
}

/* Survivors in place form new groups, and recent rows stay where they are. */
Test(grouped, survivors_are_grouped_anew) {
  enum { kMost = 80 };
  test_random random = test_random_start("grouped compact");
  for (uint32_t i = 0; i < 200; ++i) {
    if (!test_runs(i)) continue;
    kvevict_context* const context = FusedContext(&random);
    const uint32_t n = test_random_between(&random, 1, kMost);
    test_grouped* c = test_grouped_filled(context, test_grouped_draw(&random),
                                          n, &random, true);
    const uint32_t n_coded = test_grouped_coded(c, n);
    const uint32_t n_kept = test_random_below(&random, n_coded + 1);
    int32_t slots[3][kMost];
    kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
    keep.n_lists = test_random_coin(&random) ? 1 : c->spec.n_heads;
    keep.count = n_kept + n - n_coded;
    keep.slots = slots[0];
    keep.slots_len = (size_t)keep.n_lists * kMost;
    keep.list_stride = kMost;
    for (uint32_t l = 0; l < keep.n_lists; ++l) {
      test_random_ascending(&random, slots[l], n_kept, n_coded);
      for (uint32_t s = n_coded; s < n; ++s) {
        slots[l][n_kept + s - n_coded] = (int32_t)s;
      }
    }
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.n_tokens = n;
    move.view = &c->view;
    move.keep = &keep;
    test_grouped* before = test_grouped_clone(c);
    EXPECT_OK(kvevict_compact(context, &move, 1, NULL, 0, NULL));
    if (n_coded < n) c->view.first_recent = n_kept;
    test_plain ours = test_grouped_read(context, c, keep.count);
    for (uint32_t h = 0; h < c->spec.n_heads; ++h) {
      test_grouped_expect_survivors(before, &ours, h,
                                    slots[keep.n_lists == 1 ? 0 : h], n_kept,
                                    n - n_coded);
    }
    test_plain_free(&ours);
    test_grouped_destroy(c);
    test_grouped_destroy(before);
  }
}

/* ---- Scores ---- */

enum { kWindow = 8, kMostScores = 3 * 80 };

/* Scores n slots of a grouped cache, or of the f32 rows that these stand for. */
static void Score(const char* policy, const test_grouped_spec* spec,
                  kvevict_dtype dtype, const kvevict_view* view, uint32_t n,
                  const kvevict_signal_inputs* inputs, float* scores) {
  kvevict_layer_geometry layer =
      test_layer(2 * spec->n_heads, spec->n_heads, spec->dim, spec->dim);
  layer.k_dtype = layer.v_dtype = dtype;
  const kvevict_geometry geometry = test_geometry(1, 100, &layer);
  test_plan* plan =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  kvevict_score_job job =
      test_score_job(n, view, inputs, scores, spec->n_heads);
  EXPECT_OK(test_score_jobs(plan, &job, 1));
  test_plan_destroy(plan);
}

Test(grouped, scores_are_those_of_what_rows_stand_for) {
  static const char* const kPolicies[] = {"knorm:budget=40",
                                          "keydiff:budget=40",
                                          "snapkv:budget=40,window=8",
                                          "lagkv:budget=40,sink=2,block=8",
                                          "cur:budget=40",
                                          "r-kv:budget=40"};
  enum { kPolicyCount = sizeof kPolicies / sizeof *kPolicies };
  test_random random = test_random_start("grouped score");
  for (uint32_t i = 0; i < 6 * kPolicyCount; ++i) {
    if (!test_runs(6 * i)) continue;
    const char* const policy = kPolicies[i % kPolicyCount];
    test_grouped_spec spec = test_grouped_draw(&random);
    spec.dim = 64;
    const uint32_t n = test_random_between(&random, 41, 80);
    kvevict_context* const context = FusedContext(&random);
    test_grouped* c = test_grouped_filled(context, spec, n, &random, true);
    test_plain plain = test_grouped_read(context, c, n);
    const uint32_t n_numbers = 2 * spec.n_heads * kWindow * spec.dim;
    float* const numbers = malloc(n_numbers * sizeof *numbers);
    for (uint32_t e = 0; e < n_numbers; ++e) {
      numbers[e] = test_random_normal(&random);
    }
    const kvevict_plane queries =
        kvevict_plane_head_major(numbers, KVEVICT_DTYPE_F32, kWindow, spec.dim);
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    inputs.queries = &queries;
    float ours[kMostScores], theirs[kMostScores];
    Score(policy, &spec, spec.dtype, &c->view, n, &inputs, ours);
    Score(policy, &spec, KVEVICT_DTYPE_F32, &plain.view, n, &inputs, theirs);
    for (uint32_t s = 0; s < spec.n_heads * n; ++s) {
      EXPECT(ours[s] == theirs[s] ||
                 fabsf(ours[s] - theirs[s]) <= 1e-4f * (1 + fabsf(theirs[s])),
             "%s: score %u: %g is not %g", policy, s, ours[s], theirs[s]);
    }
    free(numbers);
    test_plain_free(&plain);
    test_grouped_destroy(c);
  }
}
