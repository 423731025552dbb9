/* kvevict_budget_for_mass() against a search through all budgets. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/select.h"

enum { kMaxTokens = 120, kMaxRows = 3, kMaxLayers = 3, kAll = 9 };

static kvevict_context* Context(void) {
  kvevict_context* const context = test_context();
  return context;
}

typedef struct row {
  const float* scores;
  uint32_t n;
} row;

/* The share of a row's mass that a budget keeps: select, then add up what must stay
 * by slots and the rest by scores. */
static double Share(const row* r, uint32_t budget,
                    const kvevict_mass_options* o) {
  uint8_t forced[kMaxTokens];
  int32_t order[kMaxTokens];
  double kept = 0.0, all = 0.0;
  uint32_t n_forced = 0;
  for (uint32_t i = 0; i < r->n; ++i) {
    forced[i] = i < o->n_sink || i + o->n_recent >= r->n;
    n_forced += forced[i];
    if (forced[i] && isfinite(r->scores[i])) kept += (double)r->scores[i];
  }
  all = kept;
  int32_t before[kMaxTokens] = {0};
  for (uint32_t k = n_forced + 1; k <= r->n; ++k) {
    oracle_select(r->scores, r->n, k, forced, KVEVICT_TIE_LOWER_POSITION,
                  order);
    /* The slot that k keeps and k - 1 does not. */
    uint32_t at = 0;
    if (k == n_forced + 1) {
      oracle_select(r->scores, r->n, n_forced, forced,
                    KVEVICT_TIE_LOWER_POSITION, before);
    }
    while (at < k - 1 && order[at] == before[at]) ++at;
    const double score = (double)r->scores[order[at]];
    if (isfinite(score)) {
      all += score;
      if (k <= budget) kept += score;
    }
    memcpy(before, order, k * sizeof *order);
  }
  return all == 0.0 ? 1.0 : kept / all;
}

static uint32_t Search(const row* rows, uint32_t n_rows,
                       const kvevict_mass_options* o) {
  uint32_t least = 1, most = 1;
  for (uint32_t r = 0; r < n_rows; ++r) {
    const uint32_t ends = o->n_sink + o->n_recent;
    const uint32_t n_forced = ends < rows[r].n ? ends : rows[r].n;
    least = n_forced > least ? n_forced : least;
    most = rows[r].n > most ? rows[r].n : most;
  }
  for (uint32_t budget = least; budget < most; ++budget) {
    double sum = 0.0, lowest = 1.0;
    for (uint32_t r = 0; r < n_rows; ++r) {
      const double share = Share(&rows[r], budget, o);
      sum += share;
      lowest = fmin(lowest, share);
    }
    if ((o->every_row ? lowest : sum / n_rows) >= o->mass) return budget;
  }
  return most;
}

Test(mass_budget, is_the_smallest_that_keeps_enough) {
  static const float kSpecials[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
  test_random random = test_random_start("mass_budget");
  kvevict_context* context = Context();
  static float scores[kMaxLayers][kMaxRows * kMaxTokens];
  for (int round = 0; round < 60; ++round) {
    kvevict_mass_options o = KVEVICT_MASS_OPTIONS_INIT;
    o.scope = (kvevict_scope)(round % 3);
    o.mass = round % 10 == 0 ? 1.0 : test_random_unit(&random) * 0.999 + 1e-3;
    o.n_sink = test_random_below(&random, 6);
    o.n_recent = test_random_below(&random, 6);
    o.every_row = test_random_coin(&random);
    const uint32_t n_layers = test_random_between(&random, 1, kMaxLayers);
    kvevict_layer_scores layers[kMaxLayers];
    row rows[kAll];
    uint32_t first[kMaxLayers + 1] = {0};
    for (uint32_t l = 0; l < n_layers; ++l) {
      layers[l] = (kvevict_layer_scores)KVEVICT_LAYER_SCORES_INIT;
      layers[l].n_rows = test_random_between(&random, 1, kMaxRows);
      layers[l].n_tokens =
          test_random_between(&random, 1, round % 5 == 0 ? 6 : kMaxTokens);
      layers[l].scores = scores[l];
      layers[l].scores_len = (size_t)layers[l].n_rows * layers[l].n_tokens;
      const uint32_t kind = test_random_below(&random, 4);
      for (size_t i = 0; i < layers[l].scores_len; ++i) {
        scores[l][i] = kind == 0   ? (float)test_random_below(&random, 3)
                       : kind == 1 ? 0.0f
                                   : fabsf(test_random_normal(&random));
        if (kind == 3) scores[l][i] *= scores[l][i] * scores[l][i] * 1e10f;
        if (test_random_below(&random, 9) == 0) {
          scores[l][i] = kSpecials[test_random_below(&random, 5)];
        }
      }
      first[l + 1] = first[l] + layers[l].n_rows;
      for (uint32_t r = 0; r < layers[l].n_rows; ++r) {
        rows[first[l] + r] = (row){scores[l] + (size_t)r * layers[l].n_tokens,
                                   layers[l].n_tokens};
      }
    }
    uint32_t budgets[kAll], expected[kAll];
    uint32_t n = 1;
    if (o.scope == KVEVICT_SCOPE_MODEL) {
      expected[0] = Search(rows, first[n_layers], &o);
    } else if (o.scope == KVEVICT_SCOPE_LAYER) {
      n = n_layers;
      for (uint32_t l = 0; l < n; ++l) {
        expected[l] = Search(rows + first[l], layers[l].n_rows, &o);
      }
    } else {
      n = first[n_layers];
      for (uint32_t r = 0; r < n; ++r) expected[r] = Search(rows + r, 1, &o);
    }
    EXPECT_OK(
        kvevict_budget_for_mass(context, layers, n_layers, &o, budgets, n));
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT(budgets[i] == expected[i], "round %d, %u of %u: %u, not %u", round,
             i, n, budgets[i], expected[i]);
    }
  }
}

Test(mass_budget, of_no_layer_is_none) {
  kvevict_mass_options o = KVEVICT_MASS_OPTIONS_INIT;
  o.mass = 0.5;
  uint32_t none = 77;
  for (int scope = 0; scope < 3; ++scope) {
    o.scope = (kvevict_scope)scope;
    EXPECT_OK(kvevict_budget_for_mass(Context(), NULL, 0, &o, NULL, 0));
    EXPECT_INVALID(kvevict_budget_for_mass(Context(), NULL, 0, &o, &none, 1),
                   "budgets_len 1 is not 0");
  }
  cr_expect_eq(none, 77);
}

Test(mass_budget, bad_input_is_named) {
  kvevict_context* context = Context();
  float scores[6] = {1, 8, 0, 4, 1, 2};
  kvevict_layer_scores layers[2] = {{sizeof *layers, 2, scores, 6, 3, 0},
                                    {sizeof *layers, 3, scores, 6, 2, 0}};
  kvevict_mass_options o = KVEVICT_MASS_OPTIONS_INIT;
  uint32_t budgets[5];
  GUARD(budgets);
#define CALL(n) kvevict_budget_for_mass(context, layers, 2, &o, budgets, n)
  EXPECT_INVALID(CALL(2), "mass 0 is not in (0, 1]");
  o.mass = (double)NAN;
  EXPECT_INVALID(CALL(2), "mass nan");
  o.mass = 1.5;
  EXPECT_INVALID(CALL(2), "mass 1.5");
  o.mass = 0.5;
  EXPECT_INVALID(CALL(3), "budgets_len 3 is not 2");
  o.scope = KVEVICT_SCOPE_KV_HEAD;
  EXPECT_INVALID(CALL(2), "budgets_len 2 is not 5");
  o.scope = (kvevict_scope)3;
  EXPECT_INVALID(CALL(5), "scope 3");
  o.scope = KVEVICT_SCOPE_LAYER;
  o.every_row = 2;
  EXPECT_INVALID(CALL(2), "every_row 2");
  o.every_row = 0;
  o.reserved = 1;
  EXPECT_INVALID(CALL(2), "reserved 1");
  o.reserved = 0;
  layers[1].n_tokens = 0;
  EXPECT_INVALID(CALL(2), "layers[1]: n_tokens 0");
  layers[1].n_tokens = 4;
  EXPECT_INVALID(CALL(2),
                 "layers[1]: scores_len 6 is not n_rows 3 * n_tokens 4");
  layers[1].n_tokens = 2;
  layers[1].n_rows = 0;
  EXPECT_INVALID(CALL(2), "layers[1]: n_rows 0");
  layers[1].n_rows = 3;
  layers[1].reserved = 1;
  EXPECT_INVALID(CALL(2), "layers[1]: reserved 1");
  layers[1].reserved = 0;
  layers[1].scores = NULL;
  EXPECT_INVALID(CALL(2), "layers[1]", "scores", "NULL");
  layers[1].scores = scores;
  scores[5] = -2.0f;
  EXPECT_INVALID(CALL(2), "layers[0]: score -2 of row 1, slot 2 is below 0");
  EXPECT_INVALID(kvevict_budget_for_mass(NULL, layers, 2, &o, budgets, 2),
                 "context", "NULL");
  EXPECT_INVALID(kvevict_budget_for_mass(context, layers, 2, NULL, budgets, 2),
                 "options", "NULL");
  EXPECT_INVALID(kvevict_budget_for_mass(context, NULL, 2, &o, budgets, 2),
                 "layers", "NULL");
  EXPECT_UNTOUCHED(budgets);
#undef CALL
}
