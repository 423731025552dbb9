/* Drawn tokens: the door's scores and what evictions keep, against a double oracle. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/draw.h"

enum { kMost = 3000, kHeads = 2 };

static float scores[kHeads * kMost], drawn[kHeads * kMost];

/* What kvevict_score() makes of `scores` of a plan's layer. */
static void DrawAtDoor(const char* simd, const char* policy, uint32_t layer,
                       uint32_t n, uint32_t n_seen, uint32_t n_threads) {
  const kvevict_layer_geometry g = test_layer(4, kHeads, 8, 8);
  const kvevict_geometry geometry = test_geometry(3, kMost, &g);
  test_plan* p = test_plan_create_for(simd, policy, &geometry,
                                      KVEVICT_OPERATION_SCORE, n_threads);
  const kvevict_plane plane = test_floats_plane(scores, n);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.scores = &plane;
  kvevict_score_job job = test_score_job(n, NULL, &inputs, drawn, kHeads);
  job.layer = layer;
  job.n_seen = n_seen;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  test_plan_destroy(p);
}

/* A quotient of numbers that are off by a step of the logarithm, and two roundings. */
static void ExpectQuotient(float got, double score, double number,
                           const char* what, uint32_t slot) {
  const double least = number - ORACLE_EXPONENTIAL_STEP;
  const double low = score / (number + ORACLE_EXPONENTIAL_STEP);
  const double high = least > 0.0 ? score / least : INFINITY;
  EXPECT(got >= low * (1 - 0x1p-22) && got <= high * (1 + 0x1p-22),
         "%s, slot %u: %.9g, not %.9g", what, slot, (double)got,
         score / number);
}

Test(score_draw, divides_by_numbers_of_their_own) {
  test_random random = test_random_start("score draw");
  for (uint32_t trial = 0; trial < 30; ++trial) {
    const uint32_t n = test_random_between(&random, 1, 300);
    const uint32_t n_seen = n + test_random_below(&random, 1000);
    const uint32_t layer = test_random_below(&random, 3);
    const uint64_t seed = test_random_u64(&random);
    for (uint32_t i = 0; i < kHeads * n; ++i) {
      scores[i] = (float)test_random_unit(&random);
      switch (test_random_below(&random, 12)) {
        case 0:
          scores[i] = 0.0f;
          break;
        case 1:
          scores[i] = -scores[i];
          break;
        case 2:
          scores[i] = INFINITY;
          break;
        case 3:
          scores[i] = NAN;
          break;
        case 4:
          scores[i] = 3e38f;
          break;
        default:
          break;
      }
    }
    char policy[100];
    snprintf(policy, sizeof policy, "custom:sink=0,draw=yes,seed=%llu",
             (unsigned long long)seed);
    DrawAtDoor(NULL, policy, layer, n, n_seen, 1);
    for (uint32_t i = 0; i < kHeads * n; ++i) {
      const float score = scores[i];
      const double number =
          oracle_exponential(seed, layer, i / n, n_seen, i % n);
      if (!(score > 0.0f) || isinf(score)) {
        EXPECT(memcmp(&drawn[i], &score, sizeof score) == 0, "slot %u changed",
               i);
      } else if (score / number > 3.4e38) {
        EXPECT(isfinite(drawn[i]) && drawn[i] > 3e38f, "slot %u: %g", i,
               (double)drawn[i]);
      } else {
        ExpectQuotient(drawn[i], score, number, policy, i);
      }
    }
  }
}

/* The mean of Exp(1) is 1 and its deviation too; e^-t of the numbers are above t. */
Test(score_draw, numbers_are_exponential) {
  for (int i = 0; i < kHeads * kMost; ++i) scores[i] = 1.0f;
  double sum = 0.0;
  uint32_t n_above = 0, n = 0;
  for (uint32_t n_seen = kMost; n_seen < kMost + 20; ++n_seen) {
    DrawAtDoor(NULL, "custom:sink=0,draw=yes", 0, kMost, n_seen, 1);
    for (int i = 0; i < kHeads * kMost; ++i, ++n) {
      sum += 1.0 / drawn[i];
      n_above += drawn[i] < 0.5f;
    }
  }
  const double five = 5.0 / sqrt(n); /* five deviations of a mean */
  cr_expect(fabs(sum / n - 1.0) < five, "mean %g", sum / n);
  const double share = exp(-2.0);
  cr_expect(
      fabs((double)n_above / n - share) < five * sqrt(share * (1 - share)),
      "%u of %u are above 2", n_above, n);
}

Test(score_draw, is_the_same_on_every_target_and_number_of_threads) {
  static float first[kHeads * kMost];
  test_random random = test_random_start("score draw targets");
  for (int i = 0; i < kHeads * kMost; ++i) {
    scores[i] = (float)test_random_unit(&random);
  }
  const char* const policy = "custom:sink=0,draw=yes,seed=5";
  DrawAtDoor(NULL, policy, 1, kMost, kMost + 5, 1);
  memcpy(first, drawn, sizeof first);
  const char* simd;
  for (uint32_t i = 0; (simd = kvevict_simd_target_at(i)) != NULL; ++i) {
    DrawAtDoor(simd, policy, 1, kMost, kMost + 5, 1 + i % 3);
    cr_expect(memcmp(first, drawn, sizeof first) == 0, "%s", simd);
  }
}

/* Evicts again and again; positions and tokens seen count, not slots. */
Test(score_draw, evictions_keep_the_best_quotients) {
  enum { kRow = 100, kLayers = 2 };
  static float given[kLayers][kHeads][kRow];
  test_model_spec spec =
      test_small_model("custom:budget=30,sink=2,recent=3,draw=yes,seed=11");
  spec.max_positions = 600;
  test_model* m = test_model_create(&spec, (test_random){3});
  test_random random = test_random_start("score draw evictions");
  for (int turn = 0; turn < 12; ++turn) {
    test_model_append(m, test_random_between(&random, turn == 0 ? 40 : 5, 40));
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_give_scores(&options, &inputs, kLayers, given[0][0], kHeads * kRow,
                     kRow);
    int32_t positions[kLayers][kHeads][kRow];
    uint32_t n[kLayers][kHeads];
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        n[l][h] = test_model_stored_of(m, l, h);
        test_model_positions(m, l, h, positions[l][h]);
        for (int i = 0; i < kRow; ++i) {
          given[l][h][i] = 0.01f + (float)test_random_unit(&random);
        }
      }
    }
    const uint32_t n_seen = m->n_seen;
    EXPECT_OK(test_model_evict(m, &options, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        int32_t kept[kRow];
        const uint32_t n_kept = test_model_stored_of(m, l, h);
        test_model_positions(m, l, h, kept);
        double least = INFINITY, most = 0.0;
        for (uint32_t i = 0, at = 0; i < n[l][h]; ++i) {
          const bool stays = at < n_kept && kept[at] == positions[l][h][i];
          at += stays;
          const bool must = i < 2 || i + 3 >= n[l][h];
          EXPECT(stays || !must, "turn %d lost slot %u", turn, i);
          if (must) continue;
          const double quotient =
              given[l][h][i] / oracle_exponential(11, l, h, n_seen,
                                                  (uint32_t)positions[l][h][i]);
          if (stays && quotient < least) least = quotient;
          if (!stays && quotient > most) most = quotient;
        }
        EXPECT(n_kept == (n[l][h] < 30 ? n[l][h] : 30), "%u stay", n_kept);
        EXPECT(least > most * (1 - 1e-5),
               "turn %d, layer %u, head %u: kept %g, lost %g", turn, l, h,
               least, most);
      }
    }
    test_model_check(m, "drawn");
  }
  test_model_destroy(m);
}
