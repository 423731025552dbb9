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
  return test_plan_create_least_for(simd_target, policy, &geometry,
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

/* ---- Made of queries ---- */

typedef struct query_case {
  const char* policy;
  uint32_t group, n_tokens, n_rows, head_dim;
  bool lse;
  const uint32_t* counts;
} query_case;

/* Of heads that hold so many, one head after another. */
static void FromQueries(const query_case* c, test_random* random) {
  const uint32_t dim = c->head_dim, n = c->n_tokens, n_q = kHeads * c->group;
  const uint32_t n_rows = c->n_rows == 0 ? n : c->n_rows;
  float* queries = malloc(sizeof(float) * n_q * n_rows * dim);
  float* keys = malloc(sizeof(float) * kHeads * n * dim);
  float* lse = malloc(sizeof(float) * n_q * n_rows);
  for (size_t i = 0; i < (size_t)n_q * n_rows * dim; ++i) {
    queries[i] = 4.0f * (float)test_random_unit(random) - 2.0f;
  }
  for (size_t i = 0; i < (size_t)kHeads * n * dim; ++i) {
    keys[i] = 4.0f * (float)test_random_unit(random) - 2.0f;
  }
  kvevict_layer_geometry layer = test_layer(n_q, kHeads, dim, 0);
  const kvevict_geometry geometry = test_geometry(1, n, &layer);
  test_plan* p =
      test_plan_create(c->policy, &geometry, KVEVICT_OPERATION_SCORE, 2);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k.data = (uint64_t)(uintptr_t)keys;
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = dim;
  view.k.token_stride_bytes = dim * 4;
  view.k.head_stride_bytes = (int64_t)n * dim * 4;
  kvevict_plane rows = view.k;
  rows.data = (uint64_t)(uintptr_t)queries;
  rows.head_stride_bytes = (int64_t)n_rows * dim * 4;
  kvevict_plane row_lse = rows;
  row_lse.data = (uint64_t)(uintptr_t)lse;
  row_lse.head_dim = 1;
  row_lse.token_stride_bytes = 4;
  row_lse.head_stride_bytes = (int64_t)n_rows * 4;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &rows;
  inputs.n_query_rows = c->n_rows;
  if (c->lse) inputs.row_lse = &row_lse;

  /* Sums in double precision, each head by itself. */
  sums s = {kHeads, c->group, n, n_q, n, NULL, KVEVICT_PLANE_INIT};
  s.values = malloc(sizeof(float) * n_q * n);
  double* weights = malloc(sizeof(double) * c->group * n);
  for (uint32_t h = 0; h < kHeads; ++h) {
    const uint32_t held = c->counts == NULL ? n : c->counts[h];
    const oracle_attention in = {c->group,
                                 1,
                                 held,
                                 n_rows,
                                 dim,
                                 1.0 / sqrt((double)dim),
                                 queries + (size_t)h * c->group * n_rows * dim,
                                 keys + (size_t)h * n * dim,
                                 NULL};
    oracle_window_weights(&in, weights);
    for (uint32_t g = 0; g < c->group; ++g) {
      for (uint32_t t = 0; t < held; ++t) {
        /* Divided by those that see the slot, or not. */
        const uint32_t n_later = held - t < n_rows ? held - t : n_rows;
        const bool divides = p->policy.window_reduce == KVEVICT_REDUCE_MEAN;
        s.values[((size_t)h * c->group + g) * n + t] =
            (float)(weights[(size_t)g * held + t] / (divides ? n_later : 1));
      }
      for (uint32_t w = 0; w < n_rows; ++w) {
        const size_t row = ((size_t)h * c->group + g) * n_rows + w;
        double sum = 0.0;
        for (uint32_t t = 0; t < held - n_rows + w + 1; ++t) {
          double dot = 0.0;
          for (uint32_t e = 0; e < dim; ++e) {
            dot += (double)queries[row * dim + e] *
                   (double)keys[((size_t)h * n + t) * dim + e];
          }
          sum += exp(dot * in.scale);
        }
        lse[row] = (float)log(sum);
      }
    }
  }
  kvevict_policy summed = p->policy;
  summed.window_reduce = KVEVICT_REDUCE_SUM;

  float* scores = malloc(sizeof(float) * kHeads * n);
  double* expected = malloc(sizeof(double) * n);
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = n;
  job.token_counts = c->counts;
  job.view = &view;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = (size_t)kHeads * n;
  /* In any workspace to the same bytes. */
  float* least = malloc(sizeof(float) * kHeads * n);
  memset(scores, 0, sizeof(float) * kHeads * n);
  memset(least, 0, sizeof(float) * kHeads * n);
  test_plan_poison(p, 0xFF);
  EXPECT_OK(
      kvevict_score(p->plan, &job, 1, p->workspace, p->workspace_bytes, NULL));
  test_plan_shrink(
      p, test_workspace(p->plan, KVEVICT_OPERATION_SCORE, n).least_bytes);
  job.scores = least;
  EXPECT_OK(
      kvevict_score(p->plan, &job, 1, p->workspace, p->workspace_bytes, NULL));
  for (uint32_t h = 0; h < kHeads; ++h) {
    const uint32_t held = c->counts == NULL ? n : c->counts[h];
    OracleScores(&summed, &s, h, held, held, NULL, expected);
    for (uint32_t t = 0; t < held; ++t) {
      const float score = scores[(size_t)h * n + t];
      /* Logits of up to 4 dim / sqrt(dim), twice, and sums of n_rows. */
      const double bound =
          0x1p-24 * (8.0 * sqrt(dim) * sqrt(dim) + 100.0 + sqrt(n_rows));
      EXPECT(fabs((double)score - expected[t]) <=
                 bound * fabs(expected[t]) + 1e-12,
             "%s, group %u, %u rows of %u tokens, head_dim %u, lse %d: head "
             "%u, token %u: %.9g, not %.9g",
             c->policy, c->group, n_rows, n, dim, c->lse, h, t, (double)score,
             expected[t]);
      EXPECT(memcmp(&score, &least[(size_t)h * n + t], sizeof score) == 0,
             "%s: other bits in the least workspace", c->policy);
    }
  }
  test_plan_destroy(p);
  free(queries);
  free(keys);
  free(lse);
  free(s.values);
  free(weights);
  free(scores);
  free(least);
  free(expected);
}

Test(score_sums, are_made_of_queries_where_there_are_none) {
  test_random random = test_random_start("score_sums queries");
  static const uint32_t kTokens[] = {1, 2, 63, 64, 65, 130, 700};
  for (int p = 0; p < kNPolicies; ++p) {
    for (int i = 0; i < 7; ++i) {
      const uint32_t n = kTokens[i];
      query_case c = {
          kPolicies[p], 1 + 2 * ((uint32_t)(p + i) % 2), n, 0, 17, i % 2 == 1,
          NULL};
      FromQueries(&c, &random);
      c.n_rows = test_random_between(&random, 1, n);
      c.lse = !c.lse;
      FromQueries(&c, &random);
    }
  }
  /* Several batches of rows of a head: 1024 elements leave 455 rows each. */
  const query_case large = {"h2o:rows=mean", 2, 1100, 1000, 1024, false, NULL};
  FromQueries(&large, &random);
  const uint32_t counts[kHeads] = {100, 60};
  const query_case ragged = {"h2o:rows=mean", 3, 100, 41, 8, true, counts};
  FromQueries(&ragged, &random);
}

/* An eviction takes the last rows of every layer, whatever it kept before. */
Test(score_sums, are_made_of_queries_by_evictions) {
  static const char* const kLives[] = {"h2o:budget=60,recent=5,rows=mean",
                                       "h2o:budget=60,recent=5,group=max"};
  test_random random = test_random_start("score_sums evict by queries");
  for (int i = 0; i < 2; ++i) {
    test_model_spec spec = test_small_model(kLives[i]);
    test_model* m = test_model_create(&spec, random);
    for (int round = 0; round < 3; ++round) {
      const uint32_t n_new = round == 0 ? 100 : 30;
      test_model_append(m, n_new);
      kvevict_plane planes[TEST_MAX_LAYERS];
      kvevict_signal_inputs inputs[TEST_MAX_LAYERS];
      int32_t before[TEST_MAX_LAYERS][kHeads][100];
      uint8_t forced[TEST_MAX_LAYERS][kHeads][100];
      double scores[TEST_MAX_LAYERS][kHeads][100];
      kvevict_policy summed = m->policy;
      summed.window_reduce = KVEVICT_REDUCE_SUM;
      summed.obs_window = n_new;
      summed.keep_window = 0;
      const kvevict_policy own = m->policy;
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        planes[l] = test_model_queries(m, l, m->n_seen - n_new);
        inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
        inputs[l].queries = &planes[l];
        inputs[l].n_query_rows = n_new;
        const uint32_t n = test_model_stored(m, l);
        for (uint32_t h = 0; h < kHeads; ++h) {
          test_model_positions(m, l, h, before[l][h]);
          test_model_forced(m, l, h, NULL, forced[l][h]);
          m->policy = summed;
          test_model_oracle_scores_of(m, l, h, scores[l][h]);
          m->policy = own;
          for (uint32_t t = 0; t < n; ++t) {
            if (own.window_reduce != KVEVICT_REDUCE_MEAN) continue;
            scores[l][h][t] /= n - t < n_new ? n - t : n_new;
          }
        }
      }
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      options.inputs = inputs;
      options.inputs_len = spec.n_layers;
      EXPECT_OK(test_model_evict(m, &options, NULL));
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        const uint32_t n_keep = test_model_stored(m, l);
        for (uint32_t h = 0; h < kHeads; ++h) {
          int32_t kept[100], slots[100];
          test_model_positions(m, l, h, kept);
          uint32_t from = 0;
          for (uint32_t k = 0; k < n_keep; ++k, ++from) {
            while (before[l][h][from] != kept[k]) ++from;
            slots[k] = (int32_t)from;
          }
          const uint32_t n = round == 0 ? 100 : 90;
          EXPECT(oracle_selection_is_right(scores[l][h], n, slots, n_keep,
                                           forced[l][h], 1e-5),
                 "%s, round %d, layer %u, head %u: keeps others", kLives[i],
                 round, l, h);
        }
      }
    }
    /* Tokens of the rows are gone, or were never there. */
    kvevict_plane plane = test_model_queries(m, 0, m->n_seen - 60);
    kvevict_signal_inputs inputs[TEST_MAX_LAYERS];
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
      inputs[l].queries = &plane;
      inputs[l].n_query_rows = 80;
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = inputs;
    options.inputs_len = spec.n_layers;
    test_model_append(m, 10);
    EXPECT_INVALID(test_model_evict(m, &options, NULL), "n_query_rows 80 > 70");
    for (uint32_t l = 0; l < spec.n_layers; ++l) inputs[l].n_query_rows = 60;
    EXPECT_FAILS(test_model_evict(m, &options, NULL), KVEVICT_ERROR_UNSUPPORTED,
                 "n_query_rows 60", "evicted");
    test_model_destroy(m);
  }
}

Test(score_sums, made_of_queries_that_are_bad_are_errors) {
  float scores[kHeads * 40] = {0}, numbers[kHeads * 40 * 4] = {0};
  test_plan* p = Plan(NULL, "h2o", 1, 40);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k.data = (uint64_t)(uintptr_t)numbers;
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = 4;
  view.k.token_stride_bytes = 16;
  view.k.head_stride_bytes = 16 * 40;
  const kvevict_plane rows = view.k;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = 40;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = sizeof scores / sizeof *scores;
#define EXPECT_BREAKS(change, ...)                               \
  do {                                                           \
    job.view = &view;                                            \
    job.token_counts = NULL;                                     \
    inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;  \
    inputs.queries = &rows;                                      \
    change;                                                      \
    EXPECT_INVALID(kvevict_score(p->plan, &job, 1, p->workspace, \
                                 p->workspace_bytes, NULL),      \
                   __VA_ARGS__);                                 \
  } while (0)
  const uint32_t counts[kHeads] = {40, 39};
  EXPECT_BREAKS(inputs.n_query_rows = 41, "inputs.n_query_rows 41 > 40");
  EXPECT_BREAKS(inputs.reserved = 1, "inputs.reserved 1");
  EXPECT_BREAKS(inputs.queries = NULL, "inputs.attention_sums is NULL",
                "so are queries");
  EXPECT_BREAKS(job.view = NULL, "view", "NULL");
  EXPECT_BREAKS(job.token_counts = counts, "token_counts[1] 39 < 40");
  inputs.queries = &rows;
  job.token_counts = NULL;
  EXPECT_OK(
      kvevict_score(p->plan, &job, 1, p->workspace, p->workspace_bytes, NULL));
  test_plan_destroy(p);

  p = Plan(NULL, "snapkv:window=8", 1, 40);
  EXPECT_BREAKS(inputs.n_query_rows = 7, "inputs.n_query_rows 7", "window 8");
#undef EXPECT_BREAKS
  test_plan_destroy(p);
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
