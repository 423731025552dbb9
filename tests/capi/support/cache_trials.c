#include "tests/capi/support/cache_trials.h"

#include <stdio.h>

#include "tests/capi/support/device.h"
#include "tests/capi/support/floats.h"

void test_try_spec(const test_cache_spec* spec, test_random* random,
                   test_try_cache* try) {
  const test_any_context with = test_draw_context(random);
  char what[128];
  snprintf(what, sizeof what, "%s, %s, %u heads, k %d x %u, v %d x %u",
           with.simd, test_layout_name(spec->layout), spec->n_kv_heads,
           (int)spec->k_dtype, spec->k_head_dim, (int)spec->v_dtype,
           spec->v_head_dim);
  /* These are separate statements, so that a seed draws the same everywhere. */
  test_cache_trial trial = {test_cache_create(spec, random), 0, 0, what};
  trial.n_tokens = test_random_between(random, 1, spec->capacity);
  trial.n_lists = test_random_coin(random) ? 1 : spec->n_kv_heads;
  try(&with, &trial, random);
  test_cache_destroy(trial.cache);
}

void test_try_layouts_and_dtypes(int n_rounds, test_random* random,
                                 test_try_cache* try) {
  uint32_t i = 0;
  for (int round = 0; round < n_rounds; ++round) {
    for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
      for (kvevict_dtype k = KVEVICT_DTYPE_OPAQUE; k <= KVEVICT_DTYPE_BF16;
           ++k) {
        if (!test_runs(i++)) continue;
        const test_cache_spec spec = {
            (test_layout)layout,
            test_random_between(random, 1, 4),
            test_random_between(random, 1, 90),
            k,
            test_random_between(random, 1, 40),
            (kvevict_dtype)test_random_below(random, 4),
            test_random_below(random, 40),
            test_random_below(random, 3)};
        test_try_spec(&spec, random, try);
      }
    }
  }
}

void test_try_quantized(test_random* random, test_try_cache* try) {
  uint32_t i = 0;
  for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
    for (kvevict_dtype k = KVEVICT_DTYPE_FP8_E4M3; k <= test_last_dtype();
         ++k) {
      if (!test_runs(i++)) continue;
      const kvevict_dtype v = test_random_between(random, 1, test_last_dtype());
      const uint32_t of_k = test_dtype_info(k).block_elements;
      const uint32_t of_v = test_dtype_info(v).block_elements;
      const test_cache_spec spec = {
          (test_layout)layout,
          test_random_between(random, 1, 3),
          test_random_between(random, 1, 100),
          k,
          of_k * test_random_between(random, 1, 96 / of_k),
          v,
          of_v * test_random_below(random, 96 / of_v + 1),
          test_random_below(random, 3)};
      test_try_spec(&spec, random, try);
    }
  }
}
