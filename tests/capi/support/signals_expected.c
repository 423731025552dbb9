/* What slots should score: the signal's rows, then what changes them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/signals.h"
#include "tests/oracle/draw.h"
#include "tests/oracle/key_scores.h"
#include "tests/oracle/key_value_scores.h"
#include "tests/oracle/leverage.h"
#include "tests/oracle/non_causal.h"
#include "tests/oracle/query_centers.h"
#include "tests/oracle/scores.h"

static const double kUnit = 0x1p-24;

static bool Is(const test_signals* s, const char* key, const char* value) {
  char text[TEST_VALUE_TEXT] = "";
  (void)kvevict_policy_get(s->m->policy_handle, key, text, sizeof text, NULL);
  return strcmp(text, value) == 0;
}

/* ---- Expected scores ---- */

/* A head in f32: its keys, values, biases and queries. Lengths are those of finite rows. */
typedef struct head_rows {
  uint32_t n, group;
  float *keys, *values, *biases, *queries, *reference;
  double *norms, q_max, k_max, bias_max;
} head_rows;

static double LengthOf(const float* row, uint32_t dim) {
  double sum = 0.0;
  for (uint32_t e = 0; e < dim; ++e) sum += (double)row[e] * (double)row[e];
  return sqrt(sum);
}

/* [group, n, dim] of the positions from `first` on. */
static float* ReadQueries(const test_model* m, uint32_t layer, uint32_t head,
                          uint32_t first, uint32_t n, double* most) {
  const uint32_t group = m->spec.n_q_heads / m->spec.n_kv_heads;
  const uint32_t dim = m->spec.k_head_dim;
  const uint32_t size = oracle_element_bytes(m->spec.q_dtype);
  float* rows = malloc(sizeof(float) * ((size_t)group * n * dim + 1));
  for (uint32_t i = 0; i < group * n; ++i) {
    const size_t row =
        (size_t)(first + i % n) * m->spec.n_q_heads + head * group + i / n;
    for (uint32_t e = 0; e < dim; ++e) {
      rows[(size_t)i * dim + e] = test_load(
          m->spec.q_dtype, m->queries[layer] + (row * dim + e) * size);
    }
    const double length = LengthOf(rows + (size_t)i * dim, dim);
    if (isfinite(length)) *most = fmax(*most, length);
  }
  return rows;
}

static head_rows Read(const test_signals* s, uint32_t layer, uint32_t head,
                      uint32_t n) {
  const test_model* m = s->m;
  const test_cache* live = m->live[layer];
  const uint32_t dim = m->spec.k_head_dim, v_dim = m->spec.v_head_dim;
  head_rows r = {.n = n, .group = m->spec.n_q_heads / m->spec.n_kv_heads};
  r.keys = test_cache_rows(live, &live->view.k, head, s->first, n);
  r.values = test_cache_rows(live, &live->view.v, head, s->first, n);
  if (test_bias_plane(&live->view) != NULL) {
    r.biases = test_cache_rows(live, live->companions, head, s->first, n);
  }
  r.norms = malloc(sizeof(double) * (n + 1));
  for (uint32_t t = 0; t < n; ++t) {
    const double length = LengthOf(r.keys + (size_t)t * dim, dim);
    const double bias = r.biases == NULL ? 0.0 : fabs((double)r.biases[t]);
    if (isfinite(length)) r.k_max = fmax(r.k_max, length);
    if (isfinite(bias)) r.bias_max = fmax(r.bias_max, bias);
    r.norms[t] = LengthOf(r.values + (size_t)t * v_dim, v_dim);
  }
  r.queries = ReadQueries(m, layer, head, m->n_seen - s->n_query_rows,
                          s->n_query_rows, &r.q_max);
  r.reference = ReadQueries(m, layer, head, 0, m->policy.reference, &r.q_max);
  return r;
}

static void Forget(head_rows* r) {
  free(r->keys);
  free(r->values);
  free(r->biases);
  free(r->queries);
  free(r->reference);
  free(r->norms);
}

/* Tokens at both ends that must stay of n. */
static void EndsOf(const oracle_policy* p, uint32_t n, uint32_t* sink,
                   uint32_t* recent) {
  const bool keeps = test_has_window(p) && p->keep_window;
  *recent = keeps && p->window > p->recent ? p->window : p->recent;
  *sink = p->sink < n ? p->sink : n;
  if (*recent > n - *sink) *recent = n - *sink;
}

static double ScaleOf(const test_signals* s) {
  return s->layer.softmax_scale != 0.0f ? (double)s->layer.softmax_scale
                                        : 1.0 / sqrt(s->layer.k_head_dim);
}

/* Rows of window attention, [group, n]. A weight's error is the error of its logit and
 * of the row's sum, each a sum of head_dim products of f32 rounding (in random
 * directions: times sqrt(head_dim)), and some units for exp and the sums over rows.
 * A cap and a sink add theirs. */
static void AttentionRows(const test_signals* s, uint32_t layer, uint32_t head,
                          const head_rows* r, const oracle_policy* policy,
                          const int32_t* positions, double* rows,
                          double* bounds) {
  const uint32_t dim = s->layer.k_head_dim, window = s->n_query_rows;
  const oracle_attention attention = {
      .n_q_heads = r->group,
      .n_kv_heads = 1,
      .n_tokens = r->n,
      .window = window,
      .head_dim = dim,
      .scale = ScaleOf(s),
      .queries = r->queries,
      .keys = r->keys,
      .policy = policy,
      .reference = r->reference,
      .reference_positions = s->inputs[layer].reference_positions,
      .slot_positions = positions,
      .softcap = s->layer.logit_softcap,
      .sinks = s->geometry.sink_logits == NULL
                   ? NULL
                   : s->sinks + layer * s->m->spec.n_q_heads + head * r->group,
      .biases = r->biases};
  oracle_window_weights(&attention, rows);
  const double logit = ScaleOf(s) * r->q_max * r->k_max; /* Cauchy-Schwarz */
  const double product =
      test_score_error(s->m->spec.q_dtype, s->m->spec.k_dtype, dim);
  const double tolerance =
      2.0 * logit * product +
      kUnit * (2.0 * logit * sqrt(dim + 1.0) + 16.0 +
               (window > 64 ? 84.0 + sqrt(window) : 0.0) +
               16.0 * (double)s->layer.logit_softcap +
               (attention.sinks == NULL ? 0.0 : 12.0) +
               (r->biases == NULL ? 0.0 : 8.0 * r->bias_max + 2.0 * logit));
  for (uint32_t i = 0; i < r->group * r->n; ++i)
    bounds[i] = tolerance * rows[i];
  if (policy != NULL && policy->spread > 0.0) {
    oracle_add_spread_bounds(&attention, tolerance, bounds);
  }
}

/* Sums that are given, or made of the last rows. */
static void SumRows(const test_signals* s, uint32_t layer, uint32_t head,
                    const head_rows* r, const int32_t* positions,
                    uint32_t n_seen, double* rows, double* bounds) {
  const oracle_policy* p = &s->m->policy;
  const bool is_mean = p->rows == KVEVICT_REDUCE_MEAN;
  if (s->n_sum_heads == 0) {
    AttentionRows(s, layer, head, r, NULL, positions, rows, bounds);
  }
  for (uint32_t i = 0; i < r->group * r->n; ++i) {
    const uint32_t g = i / r->n, t = i % r->n;
    const uint32_t position = positions == NULL ? t : (uint32_t)positions[t];
    uint32_t n_rows = n_seen - position;
    if (s->n_sum_heads == 0) {
      n_rows = r->n - t < s->n_query_rows ? r->n - t : s->n_query_rows;
    } else {
      /* A KV head's sum counts for each query head, or is shared by them. */
      const bool is_reduced = s->n_sum_heads == s->m->spec.n_kv_heads;
      const uint32_t row = is_reduced ? head : head * r->group + g;
      const bool shares = is_reduced && p->group == KVEVICT_REDUCE_SUM;
      rows[i] = (double)test_signal_numbers(
                    s, layer, TEST_SIGNAL_SUMS)[(size_t)row * s->stride + t] /
                (shares ? r->group : 1);
      bounds[i] = 2 * kUnit * rows[i];
    }
    if (is_mean) rows[i] /= n_rows;
    if (is_mean) bounds[i] /= n_rows;
  }
}

/* Leverage of the slots between both ends, and 0. A leverage is at most 1. Keys are
 * turned back in f32: each element errs by 2^-22 of its size. |y| is at most 1, and what
 * an error adds to y is divided by the square root of the smallest eigenvalue of the
 * Gram matrix, at least that of the ridge; if there are many more keys than elements, of
 * the order of their number. */
static void LeverageRow(const test_signals* s, const head_rows* r,
                        const int32_t* positions, double* row, double* bounds) {
  uint32_t sink, recent;
  EndsOf(&s->m->policy, r->n, &sink, &recent);
  const uint32_t n = r->n - sink - recent, dim = s->layer.k_head_dim;
  int32_t* slots = malloc(sizeof(int32_t) * (r->n + 1));
  for (uint32_t t = 0; t < r->n; ++t) {
    slots[t] = positions == NULL ? (int32_t)t : positions[t];
    row[t] = bounds[t] = 0.0;
  }
  const oracle_leverage in = {
      n,
      dim,
      r->keys + (size_t)sink * dim,
      slots + sink,
      s->inv_freq,
      s->geometry.rope_inv_freq_len,
      s->geometry.rope_layout == KVEVICT_ROPE_LAYOUT_INTERLEAVED};
  if (n > 0) oracle_leverage_scores(&in, row + sink);
  for (uint32_t t = 0; t < n; ++t) {
    bounds[sink + t] =
        n >= 4 * dim ? 0x1p-17 : 2 * r->k_max * 0x1p-22 * sqrt(dim) / 0.1;
  }
  free(slots);
}

/* Attention within chunks. Slots that take no part are 0 already. */
static void ChunkRows(const test_signals* s, const head_rows* r, double* rows,
                      double* bounds) {
  const oracle_policy* p = &s->m->policy;
  const uint32_t n = r->n, dim = s->layer.k_head_dim;
  uint32_t sink = 0, recent = 0;
  if (Is(s, "ends", "out")) EndsOf(p, n, &sink, &recent);
  const uint32_t n_middle = n - sink - recent;
  double* middle = malloc(sizeof(double) * (r->group * n + 1));
  oracle_non_causal_rows(r->group, s->n_query_rows, n_middle, dim,
                         r->queries + (size_t)(s->first + sink) * dim,
                         r->keys + (size_t)sink * dim,
                         r->biases == NULL ? NULL : r->biases + sink, p->block,
                         middle);
  const double logit = r->q_max * r->k_max;
  const double bound = kUnit * (logit * (8.0 + 4.0 * sqrt(dim)) + 64.0 +
                                sqrt(p->block) + 8.0 * r->bias_max);
  for (uint32_t i = 0; i < r->group * n_middle; ++i) {
    const size_t at = (size_t)(i / n_middle) * n + sink + i % n_middle;
    rows[at] = middle[i];
    bounds[at] = bound * middle[i];
  }
  free(middle);
}

/* The rows of a head, as many as the return value says. */
static uint32_t SignalRows(const test_signals* s, uint32_t layer, uint32_t head,
                           const head_rows* r, const uint32_t* counts,
                           const int32_t* positions, uint32_t n_seen,
                           double* rows, double* bounds) {
  const oracle_policy* p = &s->m->policy;
  const uint32_t n = r->n, dim = s->layer.k_head_dim, group = r->group;
  const size_t q_head = (size_t)head * group;
  uint32_t sink, recent;
  EndsOf(p, n, &sink, &recent);
  if (test_has_window(p)) {
    AttentionRows(s, layer, head, r, p, positions, rows, bounds);
    const bool is_mean = p->rows == KVEVICT_REDUCE_MEAN && p->reference == 0;
    for (uint32_t i = 0; is_mean && i < group * n; ++i) {
      rows[i] /= p->window;
      bounds[i] /= p->window;
    }
    return group;
  }
  for (uint32_t i = 0; i < group * n; ++i) rows[i] = bounds[i] = 0.0;
  switch (p->kind) {
    case ORACLE_H2O:
      SumRows(s, layer, head, r, positions, n_seen, rows, bounds);
      return group;
    case ORACLE_EXPECTED_ATTENTION: {
      const float* const covariance =
          test_signal_numbers(s, layer, TEST_SIGNAL_COVARIANCE) +
          q_head * dim * dim;
      oracle_expected_rows(
          n, sink, group, dim, ScaleOf(s), r->keys,
          test_signal_numbers(s, layer, TEST_SIGNAL_MEAN) + q_head * dim,
          covariance, r->biases, rows, bounds);
      return group;
    }
    case ORACLE_TRIATTENTION: {
      const oracle_centers in = {
          r->keys,
          positions,
          n,
          dim,
          sink,
          n_seen,
          group,
          s->geometry.rope_inv_freq_len,
          s->geometry.rope_layout == KVEVICT_ROPE_LAYOUT_INTERLEAVED,
          s->inv_freq,
          test_signal_numbers(s, layer, TEST_SIGNAL_CENTERS) +
              q_head * 3 * s->geometry.rope_inv_freq_len,
          3 * (size_t)s->geometry.rope_inv_freq_len};
      oracle_query_centers(&in, NULL, rows, bounds);
      return group;
    }
    case ORACLE_NON_CAUSAL:
      ChunkRows(s, r, rows, bounds);
      return group;
    case ORACLE_KEYDIFF:
      oracle_key_diff(r->keys, n, dim, rows, bounds);
      return 1;
    case ORACLE_Q_FILTER:
      oracle_key_filter(r->keys, n, dim,
                        test_signal_numbers(s, layer, TEST_SIGNAL_FILTER) +
                            (size_t)head * dim,
                        rows, bounds);
      return 1;
    case ORACLE_KNORM:
      for (uint32_t t = 0; t < n; ++t) {
        rows[t] = -LengthOf(r->keys + (size_t)t * dim, dim);
        bounds[t] = kUnit * (dim / 16.0 + 6) * -rows[t];
      }
      return 1;
    case ORACLE_CUSTOM:
      for (uint32_t t = 0; t < n; ++t) {
        rows[t] = test_signal_numbers(
            s, layer,
            TEST_SIGNAL_SCORES)[(size_t)head * s->stride + s->first + t];
        if (p->half_life == 0) continue;
        const uint32_t position =
            positions == NULL ? t : (uint32_t)positions[t];
        const double halvings = (double)(n_seen - 1 - position) / p->half_life;
        rows[t] *= exp2(halvings < 126.0 ? -halvings : -126.0);
        /* The factor is right to 3 units of 2^-32 and t's last of 24 bits. */
        bounds[t] = fabs(rows[t]) * (6 * 0x1p-32 + 3 * kUnit);
      }
      return 1;
    case ORACLE_LAGKV:
    case ORACLE_CUR: {
      const oracle_rows in = {
          n, p->sink, p->block, dim, s->m->spec.v_head_dim, r->keys, r->values};
      if (p->kind == ORACLE_CUR) {
        oracle_cur(&in, rows, bounds);
      } else {
        oracle_lag(&in, p->ranks, rows, bounds);
      }
      return 1;
    }
    case ORACLE_RANDOM:
      test_signals_random(s, layer, head, counts, rows);
      return 1;
    default:
      LeverageRow(s, r, positions, rows, bounds);
      return 1;
  }
}

/* The weight of each slot; NULL: none. */
static double* WeightsOf(const test_signals* s, uint32_t layer, uint32_t head,
                         const double* norms, const uint32_t* counts,
                         const int32_t* const* positions) {
  const oracle_policy* p = &s->m->policy;
  const float* const given =
      test_signal_numbers(s, layer, TEST_SIGNAL_WEIGHTS) + s->first;
  if (p->weight == ORACLE_WEIGHT_NONE) return NULL;
  double* weights = malloc(sizeof(double) * (counts[head] + 1));
  const uint32_t n_heads = s->m->spec.n_kv_heads;
  for (uint32_t t = 0; t < counts[head]; ++t) {
    weights[t] = p->weight == ORACLE_WEIGHT_NORM
                     ? norms[t]
                     : (double)given[(size_t)head * s->stride + t];
    if (p->share == ORACLE_SHARE_NONE) continue;
    /* Heads without the token count with the mean of those that hold it. */
    double sum = 0.0;
    uint32_t n = 0;
    for (uint32_t h = 0; h < n_heads; ++h) {
      for (uint32_t j = 0; j < counts[h]; ++j) {
        const bool is_it =
            positions == NULL ? j == t : positions[h][j] == positions[head][t];
        if (!is_it) continue;
        sum += (double)given[(size_t)h * s->stride + j];
        ++n;
      }
    }
    weights[t] = sum == 0.0 ? 0.0 : weights[t] * n / (sum * n_heads);
  }
  return weights;
}

/* What is not finite makes nothing that a bound could hold. */
static double FiniteSize(double value) {
  return isfinite(value) ? fabs(value) : 0.0;
}

/* A score of several f32 terms: as many roundings of the sum of their sizes. */
static void ShapeHead(const test_signals* s, uint32_t n_rows, uint32_t n,
                      const double* rows, double* row_bounds,
                      const double* weights, double* scores, double* bounds) {
  const oracle_policy* p = &s->m->policy;
  oracle_policy of_sizes = *p;
  const uint32_t n_past =
      test_has_window(p) && p->keep_window ? n - p->window : n;
  oracle_shape(p, n_rows, n, n, n_past, rows, weights, scores);
  of_sizes.prior = ORACLE_PRIOR_NONE;
  double* sizes = malloc(sizeof(double) * (n_rows + 2) * (n + 1));
  double* size = sizes + (size_t)n_rows * n;
  double* weight = size + n;
  for (uint32_t i = 0; i < n_rows * n; ++i) {
    sizes[i] = FiniteSize(rows[i]);
    row_bounds[i] = FiniteSize(row_bounds[i]);
  }
  for (uint32_t t = 0; weights != NULL && t < n; ++t) {
    weight[t] = FiniteSize(weights[t]);
  }
  oracle_shape(&of_sizes, n_rows, n, n, n_past, sizes,
               weights == NULL ? NULL : weight, size);
  of_sizes.epsilon = 0.0;
  oracle_shape(&of_sizes, n_rows, n, n, n_past, row_bounds,
               weights == NULL ? NULL : weight, bounds);
  const double width = p->pool == ORACLE_POOL_NONE ? 1 : p->pool_width;
  const double units = sqrt(n_rows) + sqrt(width) + 6 +
                       (weights == NULL ? 0 : s->m->spec.v_head_dim / 16.0 + 9);
  double most = 0.0, largest = 0.0;
  for (uint32_t t = 0; t < n_past; ++t) {
    bounds[t] += kUnit * units * size[t];
    if (isfinite(size[t])) most = fmax(most, bounds[t]);
    if (isfinite(size[t])) largest = fmax(largest, size[t]);
  }
  /* A mean is off by no more than the worst of its terms, and some roundings. */
  for (uint32_t t = 0; p->prior == ORACLE_PRIOR_MEAN && t < n_past; ++t) {
    bounds[t] = fmax(bounds[t], most + 16 * kUnit * largest);
  }
  /* An infinite weight times what may be 0, or on either side of it. */
  if (weights != NULL) {
    oracle_shape(p, n_rows, n, n, n_past, rows, NULL, size);
    for (uint32_t t = 0; t < n; ++t) {
      const bool may_be_0 = fabs(size[t] + p->epsilon) <= most + 1e-4 * largest;
      if (isinf(weights[t]) && may_be_0) bounds[t] = INFINITY;
    }
  }
  free(sizes);
}

/* By all finite scores of the layer between both ends. The deviation and the mean are
 * off by no more than the worst score, and by some units. */
static void Standardise(const test_signals* s, const uint32_t* counts,
                        bool everything, double* scores, double* bounds) {
  const uint32_t n_heads = s->m->spec.n_kv_heads;
  double* all = malloc(sizeof(double) * n_heads * s->stride);
  uint64_t n = 0;
  double worst = 0.0, mean = 0.0, deviation = 0.0, largest = 0.0;
  for (uint32_t h = 0; h < n_heads; ++h) {
    uint32_t sink, recent;
    EndsOf(&s->m->policy, counts[h], &sink, &recent);
    for (uint32_t t = sink; t + recent < counts[h]; ++t) {
      const size_t at = (size_t)h * s->stride + t;
      if (!isfinite(scores[at])) continue;
      all[n++] = scores[at];
      mean += scores[at];
      worst = fmax(worst, bounds[at]);
      largest = fmax(largest, fabs(scores[at]));
    }
  }
  mean /= fmax(1.0, (double)n);
  for (uint64_t i = 0; i < n; ++i) {
    deviation += (all[i] - mean) * (all[i] - mean);
  }
  deviation = n > 1 ? sqrt(deviation / ((double)n - 1.0)) : 0.0;
  deviation = fmax(deviation, 1e-6);
  for (uint32_t h = 0; n > 0 && h < n_heads; ++h) {
    uint32_t sink, recent;
    EndsOf(&s->m->policy, counts[h], &sink, &recent);
    for (uint32_t t = 0; t < counts[h]; ++t) {
      const size_t at = (size_t)h * s->stride + t;
      const bool is_end = t < sink || t + recent >= counts[h];
      if (!isfinite(scores[at]) || (is_end && !everything)) continue;
      scores[at] = (scores[at] - mean) / deviation;
      bounds[at] = (bounds[at] + worst + 4 * kUnit * largest) / deviation +
                   fabs(scores[at]) * (worst / deviation + 8 * kUnit);
    }
  }
  free(all);
}

static void AddLeverage(const test_signals* s, uint32_t layer,
                        const uint32_t* counts, const int32_t* const* positions,
                        uint32_t n_seen, double* scores, double* bounds) {
  const oracle_policy* p = &s->m->policy;
  const uint32_t n_heads = s->m->spec.n_kv_heads;
  double* z = calloc(2 * (size_t)n_heads * s->stride, sizeof *z);
  double* off = z + (size_t)n_heads * s->stride;
  for (uint32_t h = 0; h < n_heads; ++h) {
    head_rows r = Read(s, layer, h, counts[h]);
    LeverageRow(s, &r, positions == NULL ? NULL : positions[h],
                z + (size_t)h * s->stride, off + (size_t)h * s->stride);
    Forget(&r);
  }
  Standardise(s, counts, false, z, off);
  /* Chunks share a budget of tokens among the slots held. */
  const uint32_t most = p->chunk > 0 ? s->stride : s->m->spec.max_tokens;
  const uint32_t n_context = n_seen < most ? n_seen : most;
  const double kept =
      p->budget <= 1.0 ? p->budget : fmin(1.0, p->budget / n_context);
  const double blend =
      p->leverage * (Is(s, "leverage_scale", "evicted") ? 1.0 - kept : 1.0);
  for (uint32_t h = 0; h < n_heads; ++h) {
    uint32_t sink, recent;
    EndsOf(p, counts[h], &sink, &recent);
    for (uint32_t t = sink; t + recent < counts[h]; ++t) {
      const size_t at = (size_t)h * s->stride + t;
      scores[at] += blend * z[at];
      bounds[at] += blend * off[at] + 4 * kUnit * fabs(scores[at]);
    }
  }
  free(z);
}

/* Quotients of numbers that are off by a step of the logarithm. */
static void Draw(const test_signals* s, uint32_t layer, uint32_t head,
                 uint32_t n, const int32_t* positions, uint32_t n_seen,
                 double* scores, double* bounds) {
  for (uint32_t t = 0; t < n; ++t) {
    if (!(scores[t] > 0.0) || isinf(scores[t])) continue;
    const double number =
        oracle_exponential(s->m->policy.seed, layer, head, n_seen,
                           positions == NULL ? t : (uint32_t)positions[t]);
    const double least = fmax(number - ORACLE_EXPONENTIAL_STEP, 0x1p-40);
    bounds[t] = bounds[t] / least + scores[t] / least - scores[t] / number;
    scores[t] /= number;
    bounds[t] += 4 * kUnit * scores[t];
  }
}

bool test_signals_expect(const test_signals* s, uint32_t layer,
                         const uint32_t* counts,
                         const int32_t* const* positions, uint32_t n_seen,
                         double* scores, double* bounds) {
  const oracle_policy* p = &s->m->policy;
  const uint32_t n_heads = s->m->spec.n_kv_heads, dim = s->layer.k_head_dim;
  bool is_told = true;
  for (uint32_t h = 0; h < n_heads; ++h) {
    if (counts[h] == 0) continue;
    const uint32_t n = counts[h];
    const int32_t* const held = positions == NULL ? NULL : positions[h];
    double* const score = scores + (size_t)h * s->stride;
    double* const bound = bounds + (size_t)h * s->stride;
    head_rows r = Read(s, layer, h, n);
    double* rows = malloc(sizeof(double) * r.group * n);
    double* row_bounds = malloc(sizeof(double) * r.group * n);
    double* weights = WeightsOf(s, layer, h, r.norms, counts, positions);
    const uint32_t n_rows =
        SignalRows(s, layer, h, &r, counts, held, n_seen, rows, row_bounds);
    ShapeHead(s, n_rows, n, rows, row_bounds, weights, score, bound);
    if (p->redundancy > 0.0) {
      is_told =
          is_told && oracle_similarity_gap(r.keys, n, dim, p->similarity) > 0.0;
      oracle_redundancy(r.keys, n, dim, p->similarity, rows, row_bounds);
      for (uint32_t t = 0; t < n; ++t) {
        if (score[t] == INFINITY) continue; /* it must stay */
        bound[t] = (1.0 - p->redundancy) * bound[t] + row_bounds[t] +
                   0x1p-22 * (fabs(score[t]) + rows[t]);
        score[t] = (1.0 - p->redundancy) * score[t] - p->redundancy * rows[t];
      }
    }
    free(rows);
    free(row_bounds);
    free(weights);
    Forget(&r);
  }
  if (p->standardize) Standardise(s, counts, true, scores, bounds);
  if (p->leverage > 0.0) {
    AddLeverage(s, layer, counts, positions, n_seen, scores, bounds);
  }
  for (uint32_t h = 0; p->draw && h < n_heads; ++h) {
    Draw(s, layer, h, counts[h], positions == NULL ? NULL : positions[h],
         n_seen, scores + (size_t)h * s->stride,
         bounds + (size_t)h * s->stride);
  }
  return is_told;
}

void test_signals_lse(const test_signals* s, uint32_t layer, uint32_t n,
                      float* lse) {
  const test_model_spec* spec = &s->m->spec;
  const uint32_t n_rows = s->n_query_rows, dim = spec->k_head_dim;
  const double cap = s->layer.logit_softcap;
  for (uint32_t h = 0; h < spec->n_kv_heads; ++h) {
    head_rows r = Read(s, layer, h, n);
    for (uint32_t i = 0; i < r.group * n_rows; ++i) {
      const size_t head = layer * spec->n_q_heads + h * r.group + i / n_rows;
      double sum =
          s->geometry.sink_logits == NULL ? 0.0 : exp((double)s->sinks[head]);
      for (uint32_t t = 0; t <= n - n_rows + i % n_rows; ++t) {
        double dot = 0.0;
        for (uint32_t e = 0; e < dim; ++e) {
          dot += (double)r.queries[(size_t)i * dim + e] *
                 (double)r.keys[(size_t)t * dim + e];
        }
        dot *= ScaleOf(s);
        if (cap != 0.0) dot = cap * tanh(dot / cap);
        sum += exp(r.biases == NULL ? dot : dot + (double)r.biases[t]);
      }
      lse[(size_t)h * r.group * n_rows + i] = (float)log(sum);
    }
    Forget(&r);
  }
}
