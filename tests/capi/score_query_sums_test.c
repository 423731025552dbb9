/* Policy h2o without sums makes them of queries. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/sums.h"
#include "tests/oracle/scores.h"
#include "tests/oracle/select.h"

typedef struct query_case {
  const char* policy;
  uint32_t group, n_tokens, n_rows, head_dim;
  bool lse;
  const uint32_t* counts;
} query_case;

/* Heads hold these numbers of tokens, one head after another. */
static void FromQueries(const query_case* c, test_random* random) {
  const uint32_t dim = c->head_dim, n = c->n_tokens,
                 n_q = TEST_SUMS_HEADS * c->group;
  const uint32_t n_rows = c->n_rows == 0 ? n : c->n_rows;
  float* queries = malloc(sizeof(float) * n_q * n_rows * dim);
  float* keys = malloc(sizeof(float) * TEST_SUMS_HEADS * n * dim);
  float* lse = malloc(sizeof(float) * n_q * n_rows);
  for (size_t i = 0; i < (size_t)n_q * n_rows * dim; ++i) {
    queries[i] = 4.0f * (float)test_random_unit(random) - 2.0f;
  }
  for (size_t i = 0; i < (size_t)TEST_SUMS_HEADS * n * dim; ++i) {
    keys[i] = 4.0f * (float)test_random_unit(random) - 2.0f;
  }
  kvevict_layer_geometry layer = test_layer(n_q, TEST_SUMS_HEADS, dim, 0);
  const kvevict_geometry geometry = test_geometry(1, n, &layer);
  test_plan* p =
      test_plan_create(c->policy, &geometry, KVEVICT_OPERATION_SCORE, 2);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = TEST_SUMS_HEADS;
  view.k = kvevict_plane_head_major(keys, KVEVICT_DTYPE_F32, n, dim);
  const kvevict_plane rows =
      kvevict_plane_head_major(queries, KVEVICT_DTYPE_F32, n_rows, dim);
  kvevict_plane row_lse = test_floats_plane(lse, n_rows);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = &rows;
  inputs.n_query_rows = c->n_rows;
  if (c->lse) inputs.row_lse = &row_lse;

  /* Sums in double precision, head by head. */
  test_sums s = {TEST_SUMS_HEADS,   c->group, n, n_q, n, NULL,
                 KVEVICT_PLANE_INIT};
  s.values = malloc(sizeof(float) * n_q * n);
  double* weights = malloc(sizeof(double) * c->group * n);
  for (uint32_t h = 0; h < TEST_SUMS_HEADS; ++h) {
    const uint32_t held = c->counts == NULL ? n : c->counts[h];
    const oracle_attention in = {
        .n_q_heads = c->group,
        .n_kv_heads = 1,
        .n_tokens = held,
        .window = n_rows,
        .head_dim = dim,
        .scale = 1.0 / sqrt((double)dim),
        .queries = queries + (size_t)h * c->group * n_rows * dim,
        .keys = keys + (size_t)h * n * dim};
    oracle_window_weights(&in, weights);
    for (uint32_t g = 0; g < c->group; ++g) {
      for (uint32_t t = 0; t < held; ++t) {
        /* Some policies divide by the number of rows that see the slot. */
        const uint32_t n_later = held - t < n_rows ? held - t : n_rows;
        const bool divides = p->policy.rows == KVEVICT_REDUCE_MEAN;
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
  oracle_policy summed = p->policy;
  summed.rows = KVEVICT_REDUCE_SUM;

  float* scores = malloc(sizeof(float) * TEST_SUMS_HEADS * n);
  double* expected = malloc(sizeof(double) * n);
  kvevict_score_job job =
      test_score_job(n, &view, &inputs, scores, TEST_SUMS_HEADS);
  job.token_counts = c->counts;
  /* Any workspace gives the same bytes, and strides of 0 mean packed. */
  float* least = malloc(sizeof(float) * TEST_SUMS_HEADS * n);
  memset(scores, 0, sizeof(float) * TEST_SUMS_HEADS * n);
  memset(least, 0, sizeof(float) * TEST_SUMS_HEADS * n);
  test_plan_poison(p, 0xFF);
  EXPECT_OK(test_score_jobs(p, &job, 1));
  test_plan_shrink(
      p, test_workspace(p->plan, KVEVICT_OPERATION_SCORE, n).least_bytes);
  job.scores = least;
  row_lse.token_stride_bytes = row_lse.head_stride_bytes = 0;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  for (uint32_t h = 0; h < TEST_SUMS_HEADS; ++h) {
    const uint32_t held = c->counts == NULL ? n : c->counts[h];
    test_sums_scores(&summed, &s, h, held, held, NULL, expected);
    for (uint32_t t = 0; t < held; ++t) {
      const float score = scores[(size_t)h * n + t];
      /* Logits of up to 4 dim / sqrt(dim) count twice, and sums of n_rows. */
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
  for (int p = 0; p < TEST_N_SUMS_POLICIES; ++p) {
    for (int i = 0; i < 7; ++i) {
      const uint32_t n = kTokens[i];
      query_case c = {test_sums_policies[p],
                      1 + 2 * ((uint32_t)(p + i) % 2),
                      n,
                      0,
                      17,
                      i % 2 == 1,
                      NULL};
      FromQueries(&c, &random);
      c.n_rows = test_random_between(&random, 1, n);
      c.lse = !c.lse;
      FromQueries(&c, &random);
    }
  }
  /* A head's rows need several batches: 1024 elements leave room for 455 rows. */
  const query_case large = {"h2o:rows=mean", 2, 1100, 1000, 1024, false, NULL};
  FromQueries(&large, &random);
  const uint32_t counts[TEST_SUMS_HEADS] = {100, 60};
  const query_case ragged = {"h2o:rows=mean", 3, 100, 41, 8, true, counts};
  FromQueries(&ragged, &random);
}

/* An eviction scores by the last rows of every layer, whatever it kept before. */
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
      int32_t before[TEST_MAX_LAYERS][TEST_SUMS_HEADS][100];
      uint8_t forced[TEST_MAX_LAYERS][TEST_SUMS_HEADS][100];
      double scores[TEST_MAX_LAYERS][TEST_SUMS_HEADS][100];
      oracle_policy summed = m->policy;
      summed.rows = KVEVICT_REDUCE_SUM;
      summed.window = n_new;
      summed.keep_window = 0;
      const oracle_policy own = m->policy;
      for (uint32_t l = 0; l < spec.n_layers; ++l) {
        planes[l] = test_model_queries(m, l, m->n_seen - n_new);
        inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
        inputs[l].queries = &planes[l];
        inputs[l].n_query_rows = n_new;
        const uint32_t n = test_model_stored(m, l);
        for (uint32_t h = 0; h < TEST_SUMS_HEADS; ++h) {
          test_model_positions(m, l, h, before[l][h]);
          test_model_forced(m, l, h, NULL, forced[l][h]);
          m->policy = summed;
          test_model_oracle_scores_of(m, l, h, scores[l][h]);
          m->policy = own;
          for (uint32_t t = 0; t < n; ++t) {
            if (own.rows != KVEVICT_REDUCE_MEAN) continue;
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
        for (uint32_t h = 0; h < TEST_SUMS_HEADS; ++h) {
          int32_t slots[100];
          const uint32_t n = round == 0 ? 100 : 90;
          test_model_kept_slots(m, l, h, before[l][h], n, slots);
          EXPECT(oracle_selection_is_right(scores[l][h], n, slots, n_keep,
                                           forced[l][h], 1e-5),
                 "%s, round %d, layer %u, head %u: keeps others", kLives[i],
                 round, l, h);
        }
      }
    }
    /* The tokens of these rows are gone, or never were there. */
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
  float scores[TEST_SUMS_HEADS * 40] = {0},
                                 numbers[TEST_SUMS_HEADS * 40 * 4] = {0};
  test_plan* p = test_sums_plan(NULL, "h2o", 1, 40);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = TEST_SUMS_HEADS;
  view.k = kvevict_plane_head_major(numbers, KVEVICT_DTYPE_F32, 40, 4);
  const kvevict_plane rows = view.k;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = 40;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = sizeof scores / sizeof *scores;
#define EXPECT_BREAKS(change, ...)                              \
  do {                                                          \
    job.view = &view;                                           \
    job.token_counts = NULL;                                    \
    inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT; \
    inputs.queries = &rows;                                     \
    change;                                                     \
    EXPECT_INVALID(test_score_jobs(p, &job, 1), __VA_ARGS__);   \
  } while (0)
  const uint32_t counts[TEST_SUMS_HEADS] = {40, 39};
  EXPECT_BREAKS(inputs.n_query_rows = 41, "inputs.n_query_rows 41 > 40");
  EXPECT_BREAKS(inputs.n_reference_rows = 1, "inputs.n_reference_rows 1",
                "no reference queries");
  EXPECT_BREAKS(inputs.queries = NULL, "inputs.attention_sums is NULL",
                "queries are NULL");
  EXPECT_BREAKS(job.view = NULL, "view", "NULL");
  EXPECT_BREAKS(job.token_counts = counts, "token_counts[1] 39 < 40");
  inputs.queries = &rows;
  job.token_counts = NULL;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  test_plan_destroy(p);

  p = test_sums_plan(NULL, "snapkv:window=8", 1, 40);
  EXPECT_BREAKS(inputs.n_query_rows = 7, "inputs.n_query_rows 7", "window 8");
#undef EXPECT_BREAKS
  test_plan_destroy(p);
}
