/* Tokens that stay for their values, against sorting by double precision. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

enum { kLayers = 2, kHeads = 2, kRow = 100, kMeasures = 3 };

static const char* const kNames[kMeasures] = {"range", "norm", "variance"};

/* What a slot's value row has of a measure. */
static double Measure(const test_model* m, uint32_t layer, uint32_t head,
                      uint32_t slot, int measure) {
  const kvevict_plane* v = &m->views[layer].v;
  const uint32_t dim = m->spec.v_head_dim;
  const uint32_t bytes = test_element_bytes(m->spec.k_dtype);
  double least = INFINITY, most = -INFINITY, sum = 0.0, squares = 0.0;
  for (uint32_t i = 0; i < dim; ++i) {
    const uint64_t at =
        v->data +
        (uint64_t)(head * v->head_stride_bytes + slot * v->token_stride_bytes) +
        i * (uint64_t)(v->element_stride_bytes == 0 ? bytes
                                                    : v->element_stride_bytes);
    const double x = test_load(m->spec.k_dtype, (const void*)(uintptr_t)at);
    least = fmin(least, x), most = fmax(most, x);
    sum += x, squares += x * x;
  }
  if (measure == 0) return most - least;
  if (measure == 1) return sqrt(squares);
  return squares / dim - sum / dim * (sum / dim);
}

/* The n-th largest of those that need not stay. */
static double Cut(const double* of, const uint8_t* forced, uint32_t n_tokens,
                  uint32_t n) {
  double sorted[kRow];
  uint32_t n_sorted = 0;
  for (uint32_t i = 0; i < n_tokens; ++i) {
    if (forced[i]) continue;
    uint32_t at = n_sorted++;
    for (; at > 0 && sorted[at - 1] < of[i]; --at) sorted[at] = sorted[at - 1];
    sorted[at] = of[i];
  }
  return n == 0 ? INFINITY : sorted[n - 1];
}

typedef struct trial {
  const char* keys;
  uint32_t n_secured; /* of a budget of 30 */
} trial;

static void RunTrial(const trial* t, int measure, kvevict_dtype dtype,
                     uint64_t seed) {
  char policy[200];
  snprintf(policy, sizeof policy,
           "custom:budget=30,sink=2,recent=3,value_measure=%s,%s",
           kNames[measure], t->keys);
  test_model_spec spec = test_small_model(policy);
  spec.k_dtype = dtype;
  spec.v_head_dim = 20; /* no multiple of any vector */
  test_model* m = test_model_create(&spec, (test_random){seed});
  test_model_append(m, 80);
  static float scores[kLayers * kHeads * kRow];
  for (uint32_t i = 0; i < kLayers * kHeads * kRow; ++i) {
    scores[i] = (float)((i * 37 + seed) % 101);
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_give_scores(&options, &inputs, kLayers, scores, kHeads * kRow, kRow);
  int32_t protect[2] = {33, 50};
  const bool protects = seed % 2 == 0;
  if (protects) {
    options.protected_positions = protect;
    options.protected_positions_len = 2;
  }
  double of[kLayers][kHeads][kRow];
  uint8_t forced[kLayers][kHeads][kRow];
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      test_model_forced(m, l, h, &options, forced[l][h]);
      for (uint32_t i = 0; i < 80; ++i) {
        of[l][h][i] = Measure(m, l, h, i, measure);
      }
    }
  }
  EXPECT_OK(test_model_evict(m, &options, NULL));
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      int32_t kept[kRow];
      const uint32_t n_kept = test_model_stored_of(m, l, h);
      EXPECT(n_kept == 30, "%s: %u stay", policy, n_kept);
      test_model_positions(m, l, h, kept);
      const float* const held = scores + (l * kHeads + h) * kRow;
      uint8_t stays[kRow] = {0};
      for (uint32_t i = 0; i < n_kept; ++i) stays[kept[i]] = 1;
      const double cut = Cut(of[l][h], forced[l][h], 80, t->n_secured);
      /* Rows that differ by less than rounding may change places. */
      const double room = cut == INFINITY ? 0.0 : 1e-5 * fabs(cut);
      float least = INFINITY, most = -INFINITY;
      uint32_t n_secured = 0;
      for (uint32_t i = 0; i < 80; ++i) {
        const double x = of[l][h][i];
        if (forced[l][h][i] || x > cut + room) {
          EXPECT(stays[i], "%s: layer %u, head %u lost token %u", policy, l, h,
                 i);
          n_secured += !forced[l][h][i];
        } else if (x < cut - room) {
          if (stays[i]) least = fminf(least, held[i]);
          if (!stays[i]) most = fmaxf(most, held[i]);
        }
      }
      /* Without the one at the cut, and others that are as near. */
      EXPECT(n_secured + 3 >= t->n_secured && n_secured < t->n_secured,
             "%s: %u secured", policy, n_secured);
      EXPECT(least >= most, "%s: layer %u, head %u: kept %g, lost %g", policy,
             l, h, (double)least, (double)most);
    }
  }
  test_model_check(m, policy);
  test_model_destroy(m);
}

Test(values, stay_where_their_measure_is_largest) {
  /* Beside 2 first and 3 last tokens. */
  static const trial kTrials[] = {{"secure_values=1", 1},
                                  {"secure_values=9", 9},
                                  {"secure_values=0.5", 15},
                                  {"secure_values=0.25,tie=higher", 7}};
  for (uint64_t seed = 0; seed < 24; ++seed) {
    RunTrial(&kTrials[seed / 2 % 4], (int)(seed % kMeasures),
             seed % 5 < 3 ? KVEVICT_DTYPE_F32 : KVEVICT_DTYPE_F16, seed);
  }
}

/* As many as there is room for: scores then choose nothing. */
Test(values, take_no_more_than_the_budget) {
  test_model* m =
      test_model_of("custom:budget=30,sink=2,recent=3,secure_values=500", 9);
  test_model_append(m, 80);
  static float scores[kLayers][kHeads][kRow];
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_give_scores(&options, &inputs, kLayers, scores[0][0], kHeads * kRow,
                   kRow);
  double of[kRow];
  uint8_t forced[kRow];
  test_model_forced(m, 1, 1, &options, forced);
  for (uint32_t i = 0; i < 80; ++i) of[i] = Measure(m, 1, 1, i, 0);
  EXPECT_OK(test_model_evict(m, &options, NULL));
  cr_expect_eq(test_model_stored_of(m, 1, 1), 30);
  int32_t kept[kRow];
  test_model_positions(m, 1, 1, kept);
  const double cut = Cut(of, forced, 80, 25);
  for (uint32_t i = 0; i < 30; ++i) {
    cr_expect(forced[kept[i]] || of[kept[i]] >= cut, "token %d", kept[i]);
  }
  test_model_destroy(m);
}
