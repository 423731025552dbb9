#include "tests/capi/support/merged.h"

#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/oracle/compact.h"
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

test_cache* test_held_moved(const test_model* model, const test_held* held,
                            uint32_t layer, test_stayed* stayed) {
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

double test_store_error(kvevict_dtype dtype, double v) {
  const double size = fabs(v);
  if (dtype == KVEVICT_DTYPE_F32) return size * 0x1p-24;
  return dtype == KVEVICT_DTYPE_F16 ? size * 0x1p-11 + 0x1p-25 : size * 0x1p-8;
}

float* test_read_rows(const test_cache* cache, const kvevict_plane* plane,
                      uint32_t head, uint32_t n_tokens) {
  const uint32_t dim = plane->head_dim;
  float* rows = malloc(((size_t)n_tokens * dim + 1) * sizeof *rows);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    for (uint32_t i = 0; i < dim; ++i) {
      rows[(size_t)t * dim + i] = test_cache_get(cache, plane, t, head, i);
    }
  }
  return rows;
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
          bound == 0 ? 0 : bound + test_store_error(plane->dtype, expected);
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
  float* const keys = test_read_rows(before, &view->k, head, n_tokens);
  float* const values =
      has_values ? test_read_rows(before, &view->v, head, n_tokens) : NULL;
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
