/* Weights as shares of a layer's heads: at the door, and in evictions after which heads
 * hold different tokens. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/select.h"

enum { kMost = 100, kHeads = 2 };

static float scores[kHeads * kMost], weights[kHeads * kMost];

static void Draw(test_random* random) {
  for (int i = 0; i < kHeads * kMost; ++i) {
    scores[i] = (float)test_random_unit(random);
    weights[i] = test_random_below(random, 8) == 0
                     ? 0.0f
                     : (float)test_random_unit(random);
  }
}

/* What a head's slot weighs, if the others hold its token in slot `other`, or do not
 * hold it (-1): then its share of the mean of all is that of itself. */
static double ShareOf(uint32_t head, uint32_t stride, uint32_t slot,
                      int64_t other) {
  const double own = weights[head * stride + slot];
  if (other < 0) return own == 0.0 ? 0.0 : 1.0 / kHeads;
  const double sum = own + weights[(1 - head) * stride + (uint64_t)other];
  return sum == 0.0 ? 0.0 : own / sum;
}

Test(score_shares, are_of_the_heads_that_hold_the_slot) {
  test_random random = test_random_start("score shares");
  for (int trial = 0; trial < 40; ++trial) {
    Draw(&random);
    const uint32_t n = test_random_between(&random, 1, kMost);
    const uint32_t counts[kHeads] = {n, test_random_between(&random, 1, n)};
    const bool is_ragged = test_random_coin(&random);
    const kvevict_layer_geometry layer = test_layer(4, kHeads, 8, 8);
    const kvevict_geometry geometry = test_geometry(1, kMost, &layer);
    test_plan* p =
        test_plan_create("custom:sink=0,weight=given,epsilon=0.125,share=heads",
                         &geometry, KVEVICT_OPERATION_SCORE, 1);
    const kvevict_plane planes[] = {test_floats_plane(scores, n),
                                    test_floats_plane(weights, n)};
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    inputs.scores = &planes[0];
    inputs.token_weights = &planes[1];
    float got[kHeads * kMost];
    kvevict_score_job job = test_score_job(n, NULL, &inputs, got, kHeads);
    job.token_counts = is_ragged ? counts : NULL;
    EXPECT_OK(test_score_jobs(p, &job, 1));
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 0; t < (is_ragged ? counts[h] : n); ++t) {
        const bool alone = is_ragged && t >= counts[1 - h];
        const double share = ShareOf(h, n, t, alone ? -1 : (int64_t)t);
        const double want = ((double)scores[h * n + t] + 0.125) * share;
        EXPECT(fabs(got[h * n + t] - want) <= 8 * 0x1p-24 * fabs(want),
               "trial %d, head %u, slot %u: %.9g, not %.9g", trial, h, t,
               (double)got[h * n + t], want);
      }
    }
    test_plan_destroy(p);
  }
}

/* The second eviction finds heads that hold different tokens. */
Test(score_shares, follow_tokens_once_heads_differ) {
  test_random random = test_random_start("evict by shares");
  uint32_t n_alone = 0;
  for (int trial = 0; trial < 12; ++trial) {
    test_model_spec spec = test_small_model(
        "custom:sink=0,budget=40,weight=given,share=heads,heads=adaptive,"
        "floor=0");
    spec.n_layers = 1;
    spec.n_threads = 1 + (uint32_t)trial % 3;
    test_model* m = test_model_create(&spec, random);
    for (int round = 0; round < 3; ++round) {
      test_model_append(m, round == 0 ? 80 : 20);
      Draw(&random);
      const uint32_t stride = test_model_stored(m, 0);
      static int32_t held[kHeads][kMost];
      uint32_t n[kHeads];
      for (uint32_t h = 0; h < kHeads; ++h) {
        n[h] = test_model_stored_of(m, 0, h);
        test_model_positions(m, 0, h, held[h]);
      }
      double expected[kHeads][kMost], least = INFINITY;
      for (uint32_t h = 0; h < kHeads; ++h) {
        for (uint32_t i = 0; i < n[h]; ++i) {
          int64_t other = -1;
          for (uint32_t j = 0; j < n[1 - h]; ++j) {
            if (held[1 - h][j] == held[h][i]) other = j;
          }
          n_alone += other < 0;
          expected[h][i] =
              scores[h * stride + i] * ShareOf(h, stride, i, other);
        }
      }
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      const kvevict_plane planes[] = {test_floats_plane(scores, stride),
                                      test_floats_plane(weights, stride)};
      kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
      inputs.scores = &planes[0];
      inputs.token_weights = &planes[1];
      options.inputs = &inputs;
      options.inputs_len = 1;
      EXPECT_OK(test_model_evict(m, &options, NULL));
      uint32_t n_kept = 0;
      double most_lost = 0.0;
      for (uint32_t h = 0; h < kHeads; ++h) {
        const uint32_t kept = test_model_stored_of(m, 0, h);
        int32_t positions[kMost];
        test_model_positions(m, 0, h, positions);
        n_kept += kept;
        for (uint32_t i = 0, next = 0; i < n[h]; ++i) {
          const bool stays = next < kept && positions[next] == held[h][i];
          next += stays;
          if (stays && kept > 1) least = fmin(least, expected[h][i]);
          if (!stays) most_lost = fmax(most_lost, expected[h][i]);
        }
      }
      EXPECT(n_kept == 80, "round %d: %u kept", round, n_kept);
      EXPECT(least >= most_lost - 1e-6, "round %d: lost %.9g, kept %.9g", round,
             most_lost, least);
      test_model_check(m, "shares");
    }
    test_model_destroy(m);
  }
  cr_expect_gt(n_alone, 100);
}
