/* Policy h2o scores by attention sums that the engine hands over. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/sums.h"
#include "tests/oracle/scores.h"
#include "tests/oracle/select.h"

enum { kMostTokens = 8200, kGap = 5 };

static test_sums DrawSums(uint32_t group, bool reduced, uint32_t n_tokens,
                          test_random* random) {
  test_sums s = {TEST_SUMS_HEADS,
                 group,
                 n_tokens,
                 reduced ? TEST_SUMS_HEADS : TEST_SUMS_HEADS * group,
                 n_tokens + (group % 2) * kGap,
                 NULL,
                 KVEVICT_PLANE_INIT};
  s.values = malloc(s.n_rows * s.stride * sizeof(float));
  for (uint64_t i = 0; i < s.n_rows * s.stride; ++i) {
    s.values[i] = (float)test_random_unit(random) * 40.0f;
  }
  s.plane = test_floats_plane(s.values, s.stride);
  return s;
}

static kvevict_status Score(const test_plan* p, const test_sums* s,
                            const uint32_t* counts, float* scores) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.attention_sums = &s->plane;
  inputs.n_sum_heads = s->n_rows == s->n_heads ? s->n_rows : 0;
  kvevict_score_job job =
      test_score_job(s->n_tokens, NULL, &inputs, scores, s->n_heads);
  job.token_counts = counts;
  return test_score_jobs(p, &job, 1);
}

/* Sums are >= 0, so n additions, a scale by the rounded 1 / n and a division err by
 * as many roundings. */
static void ExpectScores(const test_plan* p, const test_sums* s,
                         const uint32_t* counts, const float* scores,
                         const char* what) {
  const uint32_t width =
      p->policy.pool == ORACLE_POOL_NONE ? 1 : p->policy.pool_width;
  const double bound = (s->group + width + 6) * 0x1p-24;
  double* expected = malloc(s->n_tokens * sizeof(double));
  for (uint32_t h = 0; h < s->n_heads; ++h) {
    const uint32_t n = counts == NULL ? s->n_tokens : counts[h];
    if (n == 0) continue;
    test_sums_scores(&p->policy, s, h, n, s->n_tokens, NULL, expected);
    for (uint32_t t = 0; t < n; ++t) {
      const double score = scores[(size_t)h * s->n_tokens + t];
      EXPECT(fabs(score - expected[t]) <= bound * expected[t],
             "%s, group %u, %u rows: head %u, token %u of %u: %.9g, not %.9g",
             what, s->group, s->n_rows, h, t, n, score, expected[t]);
    }
  }
  free(expected);
}

/* Every SIMD target gives the same bits. */
Test(score_sums, match_the_oracle) {
  static const uint32_t kTokens[] = {1, 2, 17, 100, 4097, kMostTokens};
  static const uint32_t kGroups[] = {1, 3, 8};
  static float scores[TEST_SUMS_HEADS * kMostTokens],
      first[TEST_SUMS_HEADS * kMostTokens];
  test_random random = test_random_start("score_sums");
  for (int p = 0; p < TEST_N_SUMS_POLICIES; ++p) {
    for (int i = 0; i < 6; ++i) {
      for (int g = 0; g < 3; ++g) {
        test_sums s = DrawSums(kGroups[g], test_random_below(&random, 3) == 0,
                               kTokens[i], &random);
        const size_t n_bytes = TEST_SUMS_HEADS * kTokens[i] * sizeof(float);
        const char* target;
        for (uint32_t at = 0; (target = kvevict_simd_target_at(at)) != NULL;
             ++at) {
          test_plan* plan = test_sums_plan(target, test_sums_policies[p],
                                           kGroups[g], kTokens[i]);
          GUARD(scores);
          EXPECT_OK(Score(plan, &s, NULL, scores));
          ExpectScores(plan, &s, NULL, scores, test_sums_policies[p]);
          EXPECT(
              test_is_filled((char*)scores + n_bytes, sizeof scores - n_bytes),
              "wrote beyond the scores");
          if (at == 0) memcpy(first, scores, n_bytes);
          EXPECT(memcmp(first, scores, n_bytes) == 0, "%s, %s: other bits",
                 test_sums_policies[p], target);
          test_plan_destroy(plan);
        }
        free(s.values);
      }
    }
  }
}

Test(score_sums, are_of_what_each_head_holds) {
  static const uint32_t kCounts[][TEST_SUMS_HEADS] = {
      {100, 60}, {1, 100}, {0, 100}};
  float scores[TEST_SUMS_HEADS * 100];
  test_random random = test_random_start("score_sums heads");
  for (int p = 0; p < TEST_N_SUMS_POLICIES; ++p) {
    for (int i = 0; i < 3; ++i) {
      test_sums s = DrawSums(3, i == 1, 100, &random);
      test_plan* plan = test_sums_plan(NULL, test_sums_policies[p], 3, 100);
      EXPECT_OK(Score(plan, &s, kCounts[i], scores));
      ExpectScores(plan, &s, kCounts[i], scores, test_sums_policies[p]);
      test_plan_destroy(plan);
      free(s.values);
    }
  }
}

/* Zeros stay equal, and values that are not finite stay where they are. */
Test(score_sums, keep_special_values_apart) {
  float scores[TEST_SUMS_HEADS * 40];
  test_random random = test_random_start("score_sums special");
  for (int p = 0; p < 4; ++p) {
    test_sums s = DrawSums(3, false, 40, &random);
    test_plan* plan = test_sums_plan(NULL, test_sums_policies[p], 3, 40);
    for (uint32_t r = 0; r < s.n_rows; ++r) {
      for (uint32_t t = 20; t < 40; ++t) s.values[r * s.stride + t] = 0.0f;
    }
    s.values[1 * s.stride + 7] = NAN;
    s.values[2 * s.stride + 9] = INFINITY;
    EXPECT_OK(Score(plan, &s, NULL, scores));
    for (uint32_t t = 0; t < 40; ++t) {
      EXPECT(!!isnan(scores[t]) == (t == 7), "%s: NaN of %u",
             test_sums_policies[p], t);
      EXPECT(!!isinf(scores[t]) == (t == 9), "%s: inf of %u",
             test_sums_policies[p], t);
      EXPECT(t < 20 || scores[t] == 0.0f, "%s: %g of zeros",
             test_sums_policies[p], (double)scores[t]);
    }
    test_plan_destroy(plan);
    free(s.values);
  }
}

/* Evictions follow each other. Positions count, not slots, and sums that are a
 * companion move along. */
static void LiveWith(const char* policy, bool reduced, test_random* random) {
  enum { kSlots = 100, kGroup = 2 };
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = 1;
  test_model* m = test_model_create(&spec, *random);
  test_sums s = DrawSums(kGroup, reduced, kSlots, random);
  const uint32_t rows_per_head = s.n_rows / TEST_SUMS_HEADS;
  kvevict_plane companion = s.plane;
  companion.head_dim = rows_per_head;
  companion.element_stride_bytes = s.plane.head_stride_bytes;
  companion.head_stride_bytes *= rows_per_head;
  m->views[0].companions = &companion;
  m->views[0].n_companions = 1;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.attention_sums = &s.plane;
  inputs.n_sum_heads = s.n_rows;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = &inputs;
  options.inputs_len = 1;
  for (int round = 0; round < 4; ++round) {
    test_model_append(m, round == 0 ? kSlots : 30);
    int32_t positions[TEST_SUMS_HEADS][kSlots];
    uint8_t forced[TEST_SUMS_HEADS][kSlots];
    double scores[TEST_SUMS_HEADS][kSlots];
    const uint32_t n = test_model_stored(m, 0);
    for (uint32_t i = 0; i < s.n_rows; ++i) {
      for (uint32_t t = 0; t < n; ++t) {
        s.values[i * s.stride + t] += (float)test_random_unit(random);
      }
    }
    for (uint32_t h = 0; h < TEST_SUMS_HEADS; ++h) {
      test_model_positions(m, 0, h, positions[h]);
      test_model_forced(m, 0, h, NULL, forced[h]);
      test_sums_scores(&m->policy, &s, h, n, m->n_seen, positions[h],
                       scores[h]);
    }
    float* before = malloc(s.n_rows * s.stride * sizeof(float));
    memcpy(before, s.values, s.n_rows * s.stride * sizeof(float));
    EXPECT_OK(test_model_evict(m, &options, NULL));
    const uint32_t n_keep = test_model_stored(m, 0);
    EXPECT(n_keep < n, "%s: nothing was evicted", policy);
    for (uint32_t h = 0; h < TEST_SUMS_HEADS; ++h) {
      int32_t slots[kSlots];
      test_model_kept_slots(m, 0, h, positions[h], n, slots);
      for (uint32_t i = 0; i < n_keep; ++i) {
        for (uint32_t r = 0; r < rows_per_head; ++r) {
          const uint64_t row = (h * rows_per_head + r) * s.stride;
          EXPECT(s.values[row + i] == before[row + (uint32_t)slots[i]],
                 "%s: the sum of head %u, slot %u stayed", policy, h, i);
        }
      }
      EXPECT(oracle_selection_is_right(scores[h], n, slots, n_keep, forced[h],
                                       1e-5),
             "%s, round %d, head %u: keeps others", policy, round, h);
    }
    free(before);
  }
  test_model_check(m, policy);
  test_model_destroy(m);
  free(s.values);
}

Test(score_sums, are_divided_by_the_queries_since_a_tokens_position) {
  static const char* const kLives[] = {
      "h2o:budget=60,recent=5", "h2o:budget=60,recent=5,rows=mean",
      "h2o:budget=60,recent=0,rows=mean,group=max"};
  test_random random = test_random_start("score_sums lives");
  for (int i = 0; i < 3; ++i) {
    LiveWith(kLives[i], false, &random);
    LiveWith(kLives[i], true, &random);
  }
}

Test(score_sums, that_are_bad_are_errors) {
  float scores[TEST_SUMS_HEADS * 40];
  test_random random = test_random_start("score_sums errors");
  const test_sums good = DrawSums(3, false, 40, &random);
  test_plan* p = test_sums_plan(NULL, "h2o", 3, 40);
  kvevict_plane plane = good.plane;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = 40;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = sizeof scores / sizeof *scores;
  GUARD(scores);
#define EXPECT_BREAKS(change, ...)                            \
  do {                                                        \
    plane = good.plane;                                       \
    inputs.attention_sums = &plane;                           \
    inputs.n_sum_heads = 0;                                   \
    change;                                                   \
    EXPECT_INVALID(test_score_jobs(p, &job, 1), __VA_ARGS__); \
    EXPECT_UNTOUCHED(scores);                                 \
  } while (0)
  EXPECT_BREAKS(inputs.attention_sums = NULL, "inputs.attention_sums is NULL",
                "accumulated attention");
  EXPECT_BREAKS(inputs.n_sum_heads = 3, "inputs.n_sum_heads 3", "n_q_heads 6",
                "n_kv_heads 2");
  EXPECT_BREAKS(plane.data = 0, "attention_sums.data");
  EXPECT_BREAKS(plane.data += 2, "attention_sums.data", "aligned");
  EXPECT_BREAKS(plane.dtype = KVEVICT_DTYPE_F16, "attention_sums.dtype");
  EXPECT_BREAKS(plane.head_dim = 2, "attention_sums.head_dim 2");
  EXPECT_BREAKS(plane.token_stride_bytes = 8,
                "attention_sums.token_stride_bytes 8", "4");
  EXPECT_BREAKS(plane.head_stride_bytes = 156,
                "attention_sums.head_stride_bytes 156", "160");
#undef EXPECT_BREAKS
  test_plan_destroy(p);
  free(good.values);
}
