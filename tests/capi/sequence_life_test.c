/* Lives of sequences under every kind of choice, against a naive model and the oracle. */
#include "tests/capi/support/sequence_life.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/sequence_kinds.h"

TestSuite(life);

Test(life, of_any_sequence_is_as_a_naive_model_says) {
  test_random random = test_random_start("life");
  test_lived all = {0};
  const char* policy;
  for (uint32_t k = 0; (policy = test_sequence_kind(k)) != NULL; ++k) {
    const uint32_t n_before = all.n_evicted;
    uint32_t n_lives = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      if (!test_runs(4 * k + i)) continue;
      test_live_kind(k, &random, i > 1, &all);
      ++n_lives;
    }
    /* One life alone may evict nothing. */
    for (int i = 0; i < 20 && n_lives == 1 && all.n_evicted == n_before; ++i) {
      test_live_kind(k, &random, false, &all);
    }
    EXPECT(all.n_evicted > n_before || n_lives == 0 || k == 0,
           "%s: no eviction", policy);
  }
  if (test_on_cuda()) return; /* fewer lives */
  EXPECT(
      all.n_refused * 20 < all.n_evicted && all.n_undone * 10 > all.n_evicted &&
          all.n_copied > 300 && all.n_gone_on > 20 && all.n_by_table > 100 &&
          all.n_masses > 400 && all.n_by_keys > 100 && all.n_rescues > 100,
      "%u evictions, %u by table, %u refused, %u taken back, %u copies, %u "
      "gone on, %u masses, %u lists by keys, %u rescues",
      all.n_evicted, all.n_by_table, all.n_refused, all.n_undone, all.n_copied,
      all.n_gone_on, all.n_masses, all.n_by_keys, all.n_rescues);
  const test_changes* c = &all.changes;
  EXPECT(
      c->n_merged * 4 > c->n_heads && c->n_weak > 0 && c->n_weak < c->n_heads &&
          c->most_fitted > 100 && c->most_biased > 1,
      "%u of %u heads merged, %u weak fits, changes of %g bounds, biases by %g",
      c->n_merged, c->n_heads, c->n_weak, c->most_fitted, c->most_biased);
}
