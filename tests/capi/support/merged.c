#include "tests/capi/support/merged.h"

#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/fit.h"
#include "tests/oracle/merge.h"

void test_hold(const test_model* model, test_held* held) {
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    held->caches[l] = test_cache_clone(model->live[l]);
    for (uint32_t h = 0; h < model->spec.n_kv_heads; ++h) {
      held->n[l][h] = test_model_stored_of(model, l, h);
      test_model_positions(model, l, h, held->positions[l][h]);
    }
  }
}

void test_held_free(const test_model* model, test_held* held) {
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    test_cache_destroy(held->caches[l]);
  }
}

/* The slots of a layer that stayed, by head. */
typedef struct stayed {
  int32_t slots[TEST_MERGED_HEADS][TEST_MERGED_TOKENS];
  uint32_t n[TEST_MERGED_HEADS];
} stayed;

/* Finds them, and returns what was held compacted by the oracle alone. */
static test_cache* Moved(const test_model* model, const test_held* held,
                         uint32_t layer, stayed* stayed) {
  const uint32_t n_heads = model->spec.n_kv_heads;
  for (uint32_t h = 0; h < n_heads; ++h) {
    stayed->n[h] =
        test_model_kept_slots(model, layer, h, held->positions[layer][h],
                              held->n[layer][h], stayed->slots[h]);
  }
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = n_heads;
  lists.slots = &stayed->slots[0][0];
  lists.list_stride = lists.count = TEST_MERGED_TOKENS;
  lists.counts = stayed->n;
  test_cache* const moved = test_cache_clone(held->caches[layer]);
  oracle_compact_lists(&moved->view, &lists);
  return moved;
}

/* Half a unit in the last place of a number that a dtype stores. */
static double StoreError(kvevict_dtype dtype, double v) {
  const double size = fabs(v);
  if (dtype == KVEVICT_DTYPE_F32) return size * 0x1p-24;
  return dtype == KVEVICT_DTYPE_F16 ? size * 0x1p-11 + 0x1p-25 : size * 0x1p-8;
}

static void ExpectRows(const test_cache* got, const test_cache* moved,
                       const kvevict_plane* plane, const kvevict_plane* other,
                       uint32_t head, uint32_t n_keep, const double* want,
                       const double* bounds, const uint8_t* changes,
                       const char* what) {
  const uint32_t dim = plane->head_dim;
  for (uint32_t t = 0; t < n_keep; ++t) {
    for (uint32_t i = 0; i < dim; ++i) {
      const float x = test_cache_get(got, plane, t, head, i);
      const double expected = want[(size_t)t * dim + i];
      if (changes[t] == 0) {
        const float same = test_cache_get(moved, other, t, head, i);
        EXPECT(memcmp(&x, &same, sizeof x) == 0,
               "%s: head %u, slot %u, element %u changed", what, head, t, i);
        continue;
      }
      /* Keys that do not merge have no computed bound. */
      const double bound = bounds[(size_t)t * dim + i];
      const double most =
          bound == 0 ? 0 : bound + StoreError(plane->dtype, expected);
      EXPECT(fabs(x - expected) <= most * (1 + 1e-6),
             "%s: head %u, slot %u, element %u is %.9g, not %.9g to %.3g", what,
             head, t, i, (double)x, expected, most);
    }
  }
}

bool test_expect_merged(const test_cache* before, const test_cache* got,
                        const test_cache* moved, uint32_t head,
                        uint32_t n_tokens, const int32_t* keep, uint32_t n_keep,
                        kvevict_merge merge, double threshold, double fraction,
                        const char* what) {
  const kvevict_view* view = &before->view;
  const bool has_values = before->spec.v_head_dim > 0;
  float* const keys = test_cache_rows(before, &view->k, head, 0, n_tokens);
  float* const values =
      has_values ? test_cache_rows(before, &view->v, head, 0, n_tokens) : NULL;
  const size_t n_k = (size_t)n_keep * view->k.head_dim + 1;
  const size_t n_v = (size_t)n_keep * view->v.head_dim + 1;
  oracle_merged want = {malloc(n_k * sizeof(double)),
                        malloc(n_v * sizeof(double)),
                        malloc(n_k * sizeof(double)),
                        malloc(n_v * sizeof(double)), malloc(n_keep + 1)};
  const oracle_merge_rows rows = {keys,
                                  values,
                                  n_tokens,
                                  view->k.head_dim,
                                  has_values ? view->v.head_dim : 0,
                                  keep,
                                  n_keep};
  const double gap = oracle_merge(&rows, merge, threshold,
                                  fraction == 0 ? 1 : fraction, &want);
  if (gap >= 0) {
    ExpectRows(got, moved, &got->view.k, &moved->view.k, head, n_keep,
               want.keys, want.key_bounds, want.changes, what);
    if (has_values) {
      ExpectRows(got, moved, &got->view.v, &moved->view.v, head, n_keep,
                 want.values, want.value_bounds, want.changes, what);
    }
  }
  free(keys);
  free(values);
  free(want.keys);
  free(want.values);
  free(want.key_bounds);
  free(want.value_bounds);
  free(want.changes);
  return gap >= 0;
}

/* ---- Fitted rows ---- */

/* The queries of each query head that values are fitted to. */
static uint32_t FitRows(const test_model* m) {
  return m->policy.reference > 0 ? m->policy.reference : m->policy.window;
}

/* Fitted biases are where the slope of their squares is 0, or beyond a limit.
 */
static void ExpectFittedBiases(const oracle_fit* in, test_changes* sum,
                               const char* what) {
  double* const pulls = malloc(in->n_keep * sizeof *pulls);
  double* const bounds = malloc(in->n_keep * sizeof *bounds);
  oracle_fit_bias_pulls(in, pulls, bounds);
  for (uint32_t t = 0; t < in->n_keep; ++t) {
    const double got = in->fitted_biases[t];
    const double change = got - (double)in->biases[in->keep[t]];
    const double most = 3 - 0x1p-23 * fabs(got);
    EXPECT((change <= -most || pulls[t] <= bounds[t]) &&
               (change >= most || pulls[t] >= -bounds[t]),
           "%s: slot %u: bias %g, changed by %g, is pulled by %g, not %g", what,
           t, got, change, pulls[t], bounds[t]);
    sum->most_biased = fmax(sum->most_biased, fabs(change));
  }
  free(pulls);
  free(bounds);
}

/* Compares the values of one head. `sinks`: of the layer's query heads, or
 * NULL. */
static void ExpectFitted(const test_model* m, uint32_t layer, uint32_t head,
                         const test_cache* before, const test_cache* moved,
                         uint32_t n_held, const int32_t* keep, uint32_t n_keep,
                         const float* sinks, test_changes* sum,
                         const char* what) {
  const test_cache* got = m->live[layer];
  const kvevict_view* view = &before->view;
  const uint32_t dim = view->v.head_dim;
  const uint32_t group = m->spec.n_q_heads / m->spec.n_kv_heads;
  const uint32_t n_rows = FitRows(m);
  const uint32_t first =
      m->policy.reference > 0 ? m->reference_first : m->n_seen - n_rows;
  float* const keys = test_cache_rows(before, &view->k, head, 0, n_held);
  float* const values = test_cache_rows(before, &view->v, head, 0, n_held);
  float* const queries = test_model_read_queries(m, layer, head, first, n_rows);
  float* const of_rows = malloc((size_t)n_rows * group * sizeof *of_rows);
  for (uint32_t i = 0; i < n_rows * group && sinks != NULL; ++i) {
    of_rows[i] = sinks[head * group + i / n_rows];
  }
  const kvevict_plane* const has_biases = test_bias_plane(view);
  float* const biases =
      has_biases ? test_cache_rows(before, has_biases, head, 0, n_held) : NULL;
  float* const fitted =
      has_biases
          ? test_cache_rows(got, test_bias_plane(&got->view), head, 0, n_keep)
          : NULL;
  const size_t n = (size_t)n_keep * dim;
  double* const want = malloc(n * sizeof *want);
  double* const bounds = malloc(n * sizeof *bounds);
  const oracle_fit in = {
      .queries = queries,
      .sinks = sinks == NULL ? NULL : of_rows,
      .keys = keys,
      .values = values,
      .n_queries = n_rows * group,
      .n_tokens = n_held,
      .key_dim = view->k.head_dim,
      .value_dim = dim,
      .scale = 1.0 / sqrt((double)view->k.head_dim),
      .softcap = m->layer.logit_softcap,
      .keep = keep,
      .n_keep = n_keep,
      .ridge = m->policy.fit_ridge,
      .biases = biases,
      .fitted_biases = fitted,
  };
  if (strstr(m->spec.policy, "fit=bias-values") != NULL) {
    ExpectFittedBiases(&in, sum, what);
  } else if (has_biases) {
    float* const same =
        test_cache_rows(moved, test_bias_plane(&moved->view), head, 0, n_keep);
    EXPECT(memcmp(same, fitted, n_keep * sizeof *same) == 0,
           "%s: a bias changed", what);
    free(same);
  }
  const double left = oracle_fit_values(&in, want, bounds);
  EXPECT(left < 1, "%s: queries read no better: %g", what, left);
  for (uint32_t t = 0; t < n_keep; ++t) {
    for (uint32_t i = 0; i < view->k.head_dim; ++i) {
      const float x = test_cache_get(got, &got->view.k, t, head, i);
      const float same = test_cache_get(moved, &moved->view.k, t, head, i);
      EXPECT(memcmp(&x, &same, sizeof x) == 0, "%s: key %u changed", what, t);
    }
    for (uint32_t i = 0; i < dim; ++i) {
      const float x = test_cache_get(got, &got->view.v, t, head, i);
      const float old = test_cache_get(moved, &moved->view.v, t, head, i);
      const size_t at = (size_t)t * dim + i;
      const double bound = bounds[at] + StoreError(view->v.dtype, want[at]);
      EXPECT(fabs(x - want[at]) <= bound,
             "%s: layer %u, head %u, slot %u, element %u is %.9g, not %.9g to "
             "%.3g",
             what, layer, head, t, i, (double)x, want[at], bound);
      sum->most_fitted = fmax(sum->most_fitted, fabs(want[at] - old) / bound);
    }
  }
  free(keys);
  free(values);
  free(queries);
  free(of_rows);
  free(biases);
  free(fitted);
  free(want);
  free(bounds);
}

/* ---- Both ---- */

static uint32_t ExpectLayer(const test_model* m, uint32_t l,
                            const test_held* held, const float* sinks,
                            test_changes* sum, const char* what) {
  static stayed stayed;
  const oracle_policy* p = &m->policy;
  const uint32_t group = m->spec.n_q_heads / m->spec.n_kv_heads;
  test_cache* const moved = Moved(m, held, l, &stayed);
  uint32_t n_weak = 0;
  for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
    const uint32_t n = stayed.n[h], n_held = held->n[l][h];
    ++sum->n_heads;
    if (p->fit == ORACLE_FIT_NONE) {
      sum->n_merged += test_expect_merged(
          held->caches[l], m->live[l], moved, h, n_held, stayed.slots[h], n,
          p->merge, p->merge_threshold, p->merge_fraction, what);
      continue;
    }
    if (n == n_held) {
      uint32_t ends[TEST_MERGED_HEADS] = {0};
      ends[h] = n;
      test_expect_same_rows_of_heads(m->live[l], moved, ends, what);
      continue;
    }
    n_weak += FitRows(m) * group < 2 * n;
    ExpectFitted(m, l, h, held->caches[l], moved, n_held, stayed.slots[h], n,
                 sinks == NULL ? NULL : sinks + l * m->spec.n_q_heads, sum,
                 what);
  }
  test_cache_destroy(moved);
  return n_weak;
}

uint32_t test_expect_changes(test_model* model, const test_held* held,
                             const float* sinks, test_changes* sum,
                             const char* what) {
  uint32_t n_weak = 0;
  for (uint32_t l = 0; l < model->spec.n_layers; ++l) {
    if (test_model_shares(model, l)) continue;
    n_weak += ExpectLayer(model, l, held, sinks, sum, what);
  }
  test_model_adopt(model);
  sum->n_weak += n_weak;
  return n_weak;
}

void test_expect_reads(const char* policy, kvevict_dtype dtype,
                       uint32_t v_head_dim, const char* what,
                       const char* reason) {
  test_model_spec spec = test_small_model(policy);
  spec.k_dtype = dtype;
  spec.v_head_dim = v_head_dim;
  test_model* m = test_model_create(&spec, (test_random){7});
  kvevict_capabilities can = {.struct_size = sizeof can};
  EXPECT_OK(kvevict_plan_capabilities(m->plan, 1, &can));
  EXPECT(can.can_score == (what == NULL) && can.needs_score, "%s: capabilities",
         policy);
  test_model_append(m, 80);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  if (m->policy.reference > 0) {
    test_model_give_reference(m, &inputs, &options);
  }
  test_cache* before = test_cache_clone(m->live[0]);
  if (what != NULL) {
    EXPECT_FAILS(test_model_evict(m, &options, NULL), KVEVICT_ERROR_UNSUPPORTED,
                 "layer 0: ", what, reason);
    test_expect_same_bytes(m->live[0], before, policy);
  } else {
    EXPECT_OK(test_model_evict(m, &options, NULL));
  }
  EXPECT(test_model_stored(m, 0) == (what != NULL ? 80 : 40), "%s", policy);
  test_cache_destroy(before);
  test_model_destroy(m);
}
