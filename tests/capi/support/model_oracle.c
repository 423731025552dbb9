/* What a model's rows score and measure by the oracle. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/scores.h"

float* test_model_read_queries(const test_model* model, uint32_t layer,
                               uint32_t head, uint32_t first, uint32_t n_rows) {
  const test_model_spec* s = &model->spec;
  const uint32_t group = s->n_q_heads / s->n_kv_heads;
  const uint32_t size = oracle_element_bytes(s->q_dtype);
  float* rows = malloc(sizeof(float) * group * (n_rows + 1) * s->k_head_dim);
  float* q = rows;
  for (uint32_t h = head * group; h < (head + 1) * group; ++h) {
    for (uint32_t r = 0; r < n_rows; ++r) {
      const size_t row = (size_t)(first + r) * s->n_q_heads + h;
      for (uint32_t e = 0; e < s->k_head_dim; ++e) {
        *q++ = test_load(s->q_dtype, model->queries[layer] +
                                         (row * s->k_head_dim + e) * size);
      }
    }
  }
  return rows;
}

/* The attention of one head, freed by the caller. */
static oracle_attention AttentionOf(const test_model* model, uint32_t layer,
                                    uint32_t head) {
  const test_model_spec* s = &model->spec;
  const uint32_t window = model->policy.window;
  const uint32_t n = test_model_stored_of(model, layer, head);
  const uint32_t group = s->n_q_heads / s->n_kv_heads;
  const test_cache* live = model->live[layer];
  float* queries = test_model_read_queries(model, layer, head,
                                           model->n_seen - window, window);
  float* reference = test_model_read_queries(
      model, layer, head, model->reference_first, model->policy.reference);
  float* keys = malloc(sizeof(float) * n * s->k_head_dim);
  int32_t* positions = malloc((n + 1) * sizeof(int32_t));
  test_model_positions(model, layer, head, positions);
  for (uint32_t i = 0; i < n * s->k_head_dim; ++i) {
    keys[i] = test_cache_get(live, &live->view.k, i / s->k_head_dim, head,
                             i % s->k_head_dim);
  }
  const kvevict_plane* const plane = test_bias_plane(&live->view);
  float* biases = plane == NULL ? NULL : malloc((n + 1) * sizeof *biases);
  for (uint32_t i = 0; biases != NULL && i < n; ++i) {
    memcpy(&biases[i], oracle_row_byte(&live->view, plane, i, head, 0),
           sizeof *biases);
  }
  return (oracle_attention){.n_q_heads = group,
                            .n_kv_heads = 1,
                            .n_tokens = n,
                            .window = window,
                            .head_dim = s->k_head_dim,
                            .scale = 1.0 / sqrt((double)s->k_head_dim),
                            .queries = queries,
                            .keys = keys,
                            .policy = &model->policy,
                            .reference = reference,
                            .reference_positions = model->reference_positions,
                            .slot_positions = positions,
                            .biases = biases};
}

static void FreeAttention(const oracle_attention* attention) {
  free((void*)attention->queries);
  free((void*)attention->keys);
  free((void*)attention->reference);
  free((void*)attention->slot_positions);
  free((void*)attention->biases);
}

void test_model_oracle_scores_of(const test_model* model, uint32_t layer,
                                 uint32_t head, double* scores) {
  const oracle_attention attention = AttentionOf(model, layer, head);
  double* weights =
      malloc(sizeof(double) * attention.n_q_heads * attention.n_tokens);
  oracle_window_weights(&attention, weights);
  oracle_shape_scores(&model->policy, &attention, weights, scores);
  FreeAttention(&attention);
  free(weights);
}

void test_model_read_rows(const test_model* model, uint32_t layer,
                          uint32_t head, float* queries, float* keys,
                          double* value_norms) {
  const test_model_spec* s = &model->spec;
  const uint32_t group = s->n_q_heads / s->n_kv_heads;
  const test_cache* live = model->live[layer];
  float* const rows =
      test_model_read_queries(model, layer, head, 0, model->n_seen);
  memcpy(queries, rows, sizeof *rows * group * model->n_seen * s->k_head_dim);
  free(rows);
  for (uint32_t t = 0; t < model->n_seen; ++t) {
    for (uint32_t e = 0; e < s->k_head_dim; ++e) {
      *keys++ = test_cache_get(live, &live->view.k, t, head, e);
    }
    double sum = 0.0;
    for (uint32_t e = 0; e < s->v_head_dim; ++e) {
      const double v = test_cache_get(live, &live->view.v, t, head, e);
      sum += v * v;
    }
    value_norms[t] = sqrt(sum);
  }
}

oracle_measure test_model_measure(const test_model* model, uint32_t layer) {
  oracle_measure measure = {0.0, 0.0, 0.0};
  for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
    const oracle_attention attention = AttentionOf(model, layer, h);
    oracle_measure_attention(&attention, model->policy.sink,
                             model->policy.recent + model->policy.window,
                             &measure);
    FreeAttention(&attention);
  }
  measure.ends /= model->spec.n_q_heads * model->policy.window;
  return measure;
}

void test_model_oracle_scores(const test_model* model, uint32_t layer,
                              double* scores) {
  const uint32_t n = test_model_stored(model, layer);
  for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
    test_model_oracle_scores_of(model, layer, h, scores + (size_t)h * n);
  }
}
