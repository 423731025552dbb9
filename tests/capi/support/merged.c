#include "tests/capi/support/merged.h"

#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/oracle/merge.h"

/* Half a unit in the last place. */
static double StoreError(kvevict_dtype dtype, double v) {
  const double size = fabs(v);
  if (dtype == KVEVICT_DTYPE_F32) return size * 0x1p-24;
  return dtype == KVEVICT_DTYPE_F16 ? size * 0x1p-11 + 0x1p-25 : size * 0x1p-8;
}

static float* ReadRows(const test_cache* cache, const kvevict_plane* plane,
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
  float* const keys = ReadRows(before, &view->k, head, n_tokens);
  float* const values =
      has_values ? ReadRows(before, &view->v, head, n_tokens) : NULL;
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
