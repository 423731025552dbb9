/* Scores from sums of attention that the engine hands over: policy h2o. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/scores.h"
#include "tests/oracle/select.h"

enum { kHeads = 2, kMostTokens = 8200, kGap = 5 };

/* Sums of a layer: of all query heads, or of KV heads. */
typedef struct sums {
  uint32_t n_heads, group, n_tokens;
  uint32_t n_rows; /* n_heads * group, or n_heads */
  uint64_t stride;
  float* values;
  kvevict_plane plane;
} sums;

static sums DrawSums(uint32_t group, bool reduced, uint32_t n_tokens,
                     test_random* random) {
  sums s = {kHeads,
            group,
            n_tokens,
            reduced ? kHeads : kHeads * group,
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

static float SumOf(const sums* s, uint32_t head, uint32_t g, uint32_t t) {
  const uint32_t row = s->n_rows == s->n_heads ? head : head * s->group + g;
  return s->values[row * s->stride + t];
}

static kvevict_status Score(const test_plan* p, const sums* s,
                            const uint32_t* counts, float* scores) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.attention_sums = &s->plane;
  inputs.n_sum_heads = s->n_rows == s->n_heads ? s->n_rows : 0;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = s->n_tokens;
  job.token_counts = counts;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = (size_t)s->n_heads * s->n_tokens;
  return kvevict_score(p->plan, &job, 1, p->workspace, p->workspace_bytes,
                       NULL);
}

/* What the policy makes of the first n_tokens sums of a head, of n_seen queries; slots
 * hold positions. */
static void OracleScores(const kvevict_policy* policy, const sums* s,
                         uint32_t head, uint32_t n_tokens, uint32_t n_seen,
                         const int32_t* positions, double* scores) {
  const bool pool_first =
      policy->shaping_order == KVEVICT_SHAPING_POOL_THEN_REDUCE;
  double* row = malloc(n_tokens * sizeof(double));
  double* pooled = malloc(n_tokens * sizeof(double));
  for (uint32_t g = 0; g < s->group; ++g) {
    for (uint32_t t = 0; t < n_tokens; ++t) {
      const uint32_t position = positions == NULL ? t : (uint32_t)positions[t];
      row[t] = SumOf(s, head, g, t);
      if (policy->window_reduce == KVEVICT_REDUCE_MEAN) {
        row[t] /= n_seen - position;
      }
    }
    if (pool_first) {
      oracle_pool(row, n_tokens, policy, pooled);
      memcpy(row, pooled, n_tokens * sizeof(double));
    }
    for (uint32_t t = 0; t < n_tokens; ++t) {
      if (g == 0) {
        scores[t] = row[t];
      } else if (policy->group_reduce == KVEVICT_REDUCE_MAX) {
        scores[t] = fmax(scores[t], row[t]);
      } else {
        scores[t] += row[t];
      }
    }
  }
  const bool is_mean = policy->group_reduce == KVEVICT_REDUCE_MEAN;
  /* One row that was reduced already, or as many equal ones. */
  const bool is_one = s->n_rows == s->n_heads && !pool_first &&
                      policy->group_reduce == KVEVICT_REDUCE_SUM;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    row[t] = scores[t] / (is_mean || is_one ? s->group : 1);
  }
  if (pool_first) {
    memcpy(scores, row, n_tokens * sizeof(double));
  } else {
    oracle_pool(row, n_tokens, policy, scores);
  }
  free(row);
  free(pooled);
}

/* Sums are >= 0: a result of n additions, a scale of rounded 1 / n and a division is
 * within so many roundings of it. */
static void ExpectScores(const test_plan* p, const sums* s,
                         const uint32_t* counts, const float* scores,
                         const char* what) {
  const uint32_t width =
      p->policy.pool == KVEVICT_POOL_NONE ? 1 : p->policy.pool_kernel;
  const double bound = (s->group + width + 6) * 0x1p-24;
  double* expected = malloc(s->n_tokens * sizeof(double));
  for (uint32_t h = 0; h < s->n_heads; ++h) {
    const uint32_t n = counts == NULL ? s->n_tokens : counts[h];
    if (n == 0) continue;
    OracleScores(&p->policy, s, h, n, s->n_tokens, NULL, expected);
    for (uint32_t t = 0; t < n; ++t) {
      const double score = scores[(size_t)h * s->n_tokens + t];
      EXPECT(fabs(score - expected[t]) <= bound * expected[t],
             "%s, group %u, %u rows: head %u, token %u of %u: %.9g, not %.9g",
             what, s->group, s->n_rows, h, t, n, score, expected[t]);
    }
  }
  free(expected);
}

static test_plan* Plan(const char* simd_target, const char* policy,
                       uint32_t group, uint32_t n_tokens) {
  const kvevict_layer_geometry layer = test_layer(kHeads * group, kHeads, 4, 0);
  const kvevict_geometry geometry = test_geometry(1, n_tokens, &layer);
  return test_plan_create_for(simd_target, policy, &geometry,
                              KVEVICT_OPERATION_SCORE, 2);
}

static const char* const kPolicies[] = {
    "h2o",
    "h2o:group=max",
    "h2o:rows=mean",
    "h2o:rows=mean,group=max",
    "h2o:rows=mean,group=sum,pool=avg5",
    "h2o:rows=mean,group=max,pool=avg5,order=pool-reduce",
    "h2o:group=sum,pool=max7,order=pool-reduce"};
enum { kNPolicies = sizeof kPolicies / sizeof kPolicies[0] };

/* On every target, with the same bits. */
Test(score_sums, match_the_oracle) {
  static const uint32_t kTokens[] = {1, 2, 17, 100, 4097, kMostTokens};
  static const uint32_t kGroups[] = {1, 3, 8};
  static float scores[kHeads * kMostTokens], first[kHeads * kMostTokens];
  test_random random = test_random_start("score_sums");
  for (int p = 0; p < kNPolicies; ++p) {
    for (int i = 0; i < 6; ++i) {
      for (int g = 0; g < 3; ++g) {
        sums s = DrawSums(kGroups[g], test_random_below(&random, 3) == 0,
                          kTokens[i], &random);
        const size_t n_bytes = kHeads * kTokens[i] * sizeof(float);
        const char* target;
        for (uint32_t at = 0; (target = kvevict_simd_target_at(at)) != NULL;
             ++at) {
          test_plan* plan = Plan(target, kPolicies[p], kGroups[g], kTokens[i]);
          GUARD(scores);
          EXPECT_OK(Score(plan, &s, NULL, scores));
          ExpectScores(plan, &s, NULL, scores, kPolicies[p]);
          EXPECT(
              test_is_filled((char*)scores + n_bytes, sizeof scores - n_bytes),
              "wrote beyond the scores");
          if (at == 0) memcpy(first, scores, n_bytes);
          EXPECT(memcmp(first, scores, n_bytes) == 0, "%s, %s: other bits",
                 kPolicies[p], target);
          test_plan_destroy(plan);
        }
        free(s.values);
      }
    }
  }
}

Test(score_sums, are_of_what_each_head_holds) {
  static const uint32_t kCounts[][kHeads] = {{100, 60}, {1, 100}, {0, 100}};
  float scores[kHeads * 100];
  test_random random = test_random_start("score_sums heads");
  for (int p = 0; p < kNPolicies; ++p) {
    for (int i = 0; i < 3; ++i) {
      sums s = DrawSums(3, i == 1, 100, &random);
      test_plan* plan = Plan(NULL, kPolicies[p], 3, 100);
      EXPECT_OK(Score(plan, &s, kCounts[i], scores));
      ExpectScores(plan, &s, kCounts[i], scores, kPolicies[p]);
      test_plan_destroy(plan);
      free(s.values);
    }
  }
}

/* Zeros stay equal, what is not finite stays where it is. */
Test(score_sums, keep_special_values_apart) {
  float scores[kHeads * 40];
  test_random random = test_random_start("score_sums special");
  for (int p = 0; p < 4; ++p) {
    sums s = DrawSums(3, false, 40, &random);
    test_plan* plan = Plan(NULL, kPolicies[p], 3, 40);
    for (uint32_t r = 0; r < s.n_rows; ++r) {
      for (uint32_t t = 20; t < 40; ++t) s.values[r * s.stride + t] = 0.0f;
    }
    s.values[1 * s.stride + 7] = NAN;
    s.values[2 * s.stride + 9] = INFINITY;
    EXPECT_OK(Score(plan, &s, NULL, scores));
    for (uint32_t t = 0; t < 40; ++t) {
      EXPECT(!!isnan(scores[t]) == (t == 7), "%s: NaN of %u", kPolicies[p], t);
      EXPECT(!!isinf(scores[t]) == (t == 9), "%s: inf of %u", kPolicies[p], t);
      EXPECT(t < 20 || scores[t] == 0.0f, "%s: %g of zeros", kPolicies[p],
             (double)scores[t]);
    }
    test_plan_destroy(plan);
    free(s.values);
  }
}

/* Evictions one after the other: what counts is the position, not the slot, and sums
 * that are a companion move along. */
static void LiveWith(const char* policy, bool reduced, test_random* random) {
  enum { kSlots = 100, kGroup = 2 };
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = 1;
  test_model* m = test_model_create(&spec, *random);
  sums s = DrawSums(kGroup, reduced, kSlots, random);
  const uint32_t rows_per_head = s.n_rows / kHeads;
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
    int32_t positions[kHeads][kSlots], kept[kHeads][kSlots];
    uint8_t forced[kHeads][kSlots];
    double scores[kHeads][kSlots];
    const uint32_t n = test_model_stored(m, 0);
    for (uint32_t i = 0; i < s.n_rows; ++i) {
      for (uint32_t t = 0; t < n; ++t) {
        s.values[i * s.stride + t] += (float)test_random_unit(random);
      }
    }
    for (uint32_t h = 0; h < kHeads; ++h) {
      test_model_positions(m, 0, h, positions[h]);
      test_model_forced(m, 0, h, NULL, forced[h]);
      OracleScores(&m->policy, &s, h, n, m->n_seen, positions[h], scores[h]);
    }
    float* before = malloc(s.n_rows * s.stride * sizeof(float));
    memcpy(before, s.values, s.n_rows * s.stride * sizeof(float));
    EXPECT_OK(test_model_evict(m, &options, NULL));
    const uint32_t n_keep = test_model_stored(m, 0);
    EXPECT(n_keep < n, "%s: nothing was evicted", policy);
    for (uint32_t h = 0; h < kHeads; ++h) {
      test_model_positions(m, 0, h, kept[h]);
      int32_t slots[kSlots];
      uint32_t from = 0;
      for (uint32_t i = 0; i < n_keep; ++i, ++from) {
        while (positions[h][from] != kept[h][i]) ++from;
        slots[i] = (int32_t)from;
        for (uint32_t r = 0; r < rows_per_head; ++r) {
          const uint64_t row = (h * rows_per_head + r) * s.stride;
          EXPECT(s.values[row + i] == before[row + from],
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
  float scores[kHeads * 40];
  test_random random = test_random_start("score_sums errors");
  const sums good = DrawSums(3, false, 40, &random);
  test_plan* p = Plan(NULL, "h2o", 3, 40);
  kvevict_plane plane = good.plane;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = 40;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = sizeof scores / sizeof *scores;
  GUARD(scores);
#define EXPECT_BREAKS(change, ...)                               \
  do {                                                           \
    plane = good.plane;                                          \
    inputs.attention_sums = &plane;                              \
    inputs.n_sum_heads = 0;                                      \
    change;                                                      \
    EXPECT_INVALID(kvevict_score(p->plan, &job, 1, p->workspace, \
                                 p->workspace_bytes, NULL),      \
                   __VA_ARGS__);                                 \
    EXPECT_UNTOUCHED(scores);                                    \
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
