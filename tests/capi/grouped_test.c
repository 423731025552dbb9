/* KIVI-style caches store, read and move rows byte by byte as the oracle does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/hooks.h"

static kvevict_context* context;

static void CreateContext(void) { context = test_grouped_context(); }
TestSuite(grouped, .init = CreateContext);

static void ExpectReads(const test_grouped* c, uint32_t n) {
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

Test(grouped, rows_are_stored_by_groups_and_read) {
  test_random random = test_random_start("grouped store");
  for (int i = 0; i < 300; ++i) {
    const uint32_t n = test_random_between(&random, 1, 80);
    test_grouped* c =
        test_grouped_filled(context, test_grouped_draw(&random), n, &random,
                            test_random_coin(&random));
    ExpectReads(c, n);
    test_grouped_destroy(c);
  }
}

Test(grouped, every_simd_target_makes_the_same_bytes) {
  test_random random = test_random_start("grouped targets");
  kvevict_context* const best = context;
  const char* name;
  for (uint32_t t = 0; (name = kvevict_simd_target_at(t)) != NULL; ++t) {
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    options.simd_target = name;
    EXPECT_OK(kvevict_context_create(&options, &context));
    for (int i = 0; i < 12; ++i) {
      const test_grouped_spec spec = test_grouped_draw(&random);
      test_grouped* c = test_grouped_create(&spec, &random);
      c->view.first_recent = spec.has_recent ? 20 : 0;
      test_grouped_fill(context, c, 0, test_random_between(&random, 1, 80),
                        &random, false);
      test_grouped_destroy(c);
    }
    kvevict_context_destroy(context);
  }
  context = best;
}

/* Storing once changes an element by at most half a step of its group. */
Test(grouped, errors_are_half_a_step) {
  test_random random = test_random_start("grouped errors");
  for (int i = 0; i < 60; ++i) {
    test_grouped_spec spec = test_grouped_draw(&random);
    spec.has_recent = false;
    spec.groups_values = true;
    spec.scale = spec.minimum = KVEVICT_DTYPE_F32;
    test_grouped* c = test_grouped_create(&spec, &random);
    const uint32_t n = test_random_between(&random, 1, 80);
    test_plain p = test_plain_make(&spec, n);
    test_plain_draw(&p, spec.dim, &random, true);
    EXPECT_OK(test_grouped_append(context, c, &p, 0));
    test_grouped_store_all(c, &p, 0);
    const double n_steps = spec.dtype >= KVEVICT_DTYPE_U4 ? 15 : 255;
    for (uint32_t h = 0; h < spec.n_heads; ++h) {
      for (uint32_t at = 0; at < n * spec.dim; ++at) {
        const uint32_t begin = at / spec.dim / spec.group * spec.group;
        double low = INFINITY, high = -INFINITY;
        for (uint32_t s = begin; s < begin + spec.group && s < n; ++s) {
          low = fmin(low, test_plain_row(&p, 1, h, s)[at % spec.dim]);
          high = fmax(high, test_plain_row(&p, 1, h, s)[at % spec.dim]);
        }
        const double error = fabs((double)test_plain_row(&p, 1, h, 0)[at] -
                                  test_grouped_row(c, 1, h, 0)[at]);
        const double bound = (high - low) / n_steps * 0.5 +
                             0x1p-22 * fmax(fabs(low), fabs(high));
        EXPECT(error <= bound, "off by %g > %g", error, bound);
      }
    }
    test_plain_free(&p);
    test_grouped_destroy(c);
  }
}

/* Survivors in place form new groups, and recent rows stay where they are. */
Test(grouped, survivors_are_grouped_anew) {
  enum { kMost = 80 };
  test_random random = test_random_start("grouped compact");
  for (int i = 0; i < 200; ++i) {
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
