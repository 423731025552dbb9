#include "tests/capi/support/drawn_inputs.h"

#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"

/* What is handed over stands before what was observed. */
static void HandOver(const test_model* m, test_random* random, test_inputs* out,
                     kvevict_evict_options* options) {
  const uint32_t window = m->policy.window, n = m->n_seen;
  test_give_scores(options, out, m->spec.n_layers, NULL, 0, 0);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    out->inputs[l].scores = NULL;
    if (test_random_coin(random)) continue;
    const kvevict_plane others = test_model_queries(m, l, (n - window) / 2);
    EXPECT_OK(test_observe(m->sequence, l, &others, window, n - window));
    out->planes[l] = test_model_queries(m, l, n - window);
    out->inputs[l].queries = &out->planes[l];
  }
}

void test_draw_inputs(test_model* m, uint32_t n_protect, test_random* random,
                      test_drawn_inputs* in) {
  const uint32_t n_seen = m->n_seen;
  const uint32_t most = n_protect < n_seen ? n_protect : n_seen;
  in->options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
  in->hands_over = m->policy.window > 0 && m->policy.window <= n_seen &&
                   m->policy.reference == 0 &&
                   test_random_below(random, 4) == 0;
  const uint32_t n = test_random_below(random, most + 1);
  test_random own = test_random_apart(random);
  test_random_ascending(&own, in->protect, n, n_seen);
  in->options.protected_positions = in->protect;
  in->options.protected_positions_len = n;
  /* The oracle's attention has no ranks, and diverse blocks exclude them. */
  if ((m->policy.window == 0 || m->policy.select_block > 1) &&
      m->policy.diverse_mass == 0 && test_random_below(random, 3) == 0) {
    in->ranges = test_random_ranges(random, 5, n_seen + 20);
    in->options.ranges = in->ranges.of;
    in->options.ranges_len = in->ranges.n;
  }
  if (m->policy.kind == ORACLE_CUSTOM) {
    test_draw_given(random, &in->given);
    test_give(&in->given, m->spec.n_layers, &in->options);
  } else if (m->policy.reference > 0) {
    for (uint32_t r = 0; r < m->policy.reference; ++r) {
      in->positions[r] =
          (int32_t)(r % 2 == 0 ? n_seen + r
                               : test_random_below(random, n_seen + 1));
    }
    m->reference_first = n_seen;
    m->reference_positions =
        m->policy.fit != 0 || test_random_coin(random) ? NULL : in->positions;
    test_model_give_reference(m, &in->queries, &in->options);
  } else if (in->hands_over) {
    HandOver(m, random, &in->queries, &in->options);
  }
  const kvevict_workspace size =
      test_workspace(m->plan, KVEVICT_OPERATION_EVICT, 0);
  m->workspace_bytes = size.least_bytes + (size.best_bytes - size.least_bytes) *
                                              test_random_below(random, 5) / 4;
}
