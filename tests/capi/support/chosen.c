/* Whether a model holds what was chosen. */
#include <math.h>

#include "tests/capi/support/blocks.h"
#include "tests/capi/support/choice.h"
#include "tests/capi/support/expect.h"
#include "tests/oracle/select.h"

enum { kTokens = TEST_CHOICE_TOKENS };

/* What two stages keep of n slots: what must stay first, then the best by rank and plain
 * scores, at least n_least, then those by rank and refined ones. */
static void KeepInStages(const oracle_policy* p, const float* scores,
                         const float* weights, const int32_t* ranks, uint32_t n,
                         const uint8_t* forced, uint32_t n_keep,
                         uint32_t n_least, int32_t* keep) {
  uint32_t n_first = (uint32_t)((float)n_keep * (float)p->secure);
  if (n_first < n_least) n_first = n_least;
  if (n_first > n_keep) n_first = n_keep;
  float refined[kTokens];
  for (uint32_t i = 0; i < n; ++i)
    refined[i] = test_refine(p, scores[i], weights[i]);
  oracle_select_ranked(scores, ranks, n, n_first, forced, 1, p->tie, keep);
  for (uint32_t i = 0; i < n_first; ++i) refined[keep[i]] = INFINITY;
  oracle_select_ranked(refined, ranks, n, n_keep, forced, 1, p->tie, keep);
}

/* The n_keep slots of [begin, end) that stay. */
static void Keep(const oracle_policy* p, const test_choice_head* head,
                 const float* weights, uint32_t begin, uint32_t end,
                 uint32_t n_keep, int32_t* keep) {
  float scores[kTokens];
  const uint32_t n = end - begin;
  const uint8_t* const forced = head->forced + begin;
  const int32_t* const ranks = head->ranks + begin;
  for (uint32_t i = 0; i < n; ++i) scores[i] = (float)head->scores[begin + i];
  if (p->secure > 0 && p->weight == ORACLE_WEIGHT_GIVEN) {
    const bool has_floor = p->heads == ORACLE_HEADS_ADAPTIVE;
    const uint32_t n_least =
        has_floor ? (uint32_t)fmax(1, floor(p->budget * p->floor)) : 0;
    KeepInStages(p, scores, weights + begin, ranks, n, forced, n_keep, n_least,
                 keep);
  } else {
    oracle_select_ranked(scores, ranks, n, n_keep, forced, p->select_block,
                         test_tie_of(p), keep);
  }
  for (uint32_t i = 0; i < n_keep; ++i) keep[i] += (int32_t)begin;
}

/* What the value row of a token has of the policy's measure. */
static double ValueOf(const test_model* m, uint32_t l, uint32_t h,
                      int32_t position) {
  const test_cache* c = m->archive[l];
  const uint32_t dim = c->spec.v_head_dim;
  double least = INFINITY, most = -INFINITY, sum = 0.0, squares = 0.0;
  for (uint32_t i = 0; i < dim; ++i) {
    const double x = test_cache_get(c, &c->view.v, (uint32_t)position, h, i);
    least = fmin(least, x);
    most = fmax(most, x);
    sum += x;
    squares += x * x;
  }
  switch (m->policy.value_measure) {
    case ORACLE_VALUES_RANGE:
      return most - least;
    case ORACLE_VALUES_NORM:
      return sqrt(squares);
    default:
      return squares / dim - sum / dim * (sum / dim);
  }
}

/* Gives the highest score to tokens that stay for their values, and as many more as are
 * protected but gone. False if rounding may decide which. */
static bool SecureValues(const test_model* m, uint32_t l, uint32_t h,
                         uint32_t n_keep, test_choice* c) {
  const oracle_policy* p = &m->policy;
  test_choice_head* head = &c->heads[l][h];
  double values[kTokens], last = INFINITY;
  uint32_t n_forced = 0;
  for (uint32_t i = 0; i < head->n; ++i) {
    n_forced += head->forced[i];
    values[i] = ValueOf(m, l, h, head->positions[i]);
  }
  uint32_t n = (uint32_t)(p->secure_values_share * n_keep) + p->secure_values +
               c->n_asked - n_forced;
  if (n > n_keep - n_forced) n = n_keep - n_forced;
  for (;; --n) {
    uint32_t best = head->n;
    for (uint32_t i = 0; i < head->n; ++i) {
      if (head->forced[i]) continue;
      if (best == head->n || values[i] > values[best]) best = i;
    }
    if (n == 0) return best == head->n || values[best] < last * (1 - 1e-5);
    last = values[best];
    values[best] = -INFINITY;
    head->scores[best] = INFINITY;
  }
}

static uint32_t SlotsOf(const uint8_t* stays, uint32_t n, int32_t* slots) {
  uint32_t n_stay = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (stays[i]) slots[n_stay++] = (int32_t)i;
  }
  return n_stay;
}

/* Adds the rescued blocks to the slots that stay. Means of sums mark none. */
static uint32_t Rescue(const oracle_policy* p, const test_choice_head* head,
                       const float* sums, int32_t* slots, uint32_t n_slots) {
  const bool are_means =
      p->kind == ORACLE_H2O && p->rows == KVEVICT_REDUCE_MEAN;
  float marks[kTokens];
  uint8_t stays[kTokens] = {0};
  for (uint32_t i = 0; i < head->n; ++i) {
    marks[i] = are_means ? sums[i] : (float)head->scores[i];
  }
  for (uint32_t i = 0; i < n_slots; ++i) stays[slots[i]] = 1;
  test_rescue_blocks(p, marks, head->n, head->n_rescued, stays);
  return SlotsOf(stays, head->n, slots);
}

/* Scores are f32 sums of some hundred products; score_test.c derives their rounding. */
static void ExpectSlots(const test_model* m, const test_given* given,
                        test_choice* c, uint32_t l, uint32_t h, uint32_t n_keep,
                        const char* what) {
  const oracle_policy* p = &m->policy;
  test_choice_head* head = &c->heads[l][h];
  int32_t slots[kTokens], want[kTokens];
  test_model_kept_slots(m, l, h, head->positions, head->n, slots);
  if (!c->is_exact) {
    double largest = 0.0;
    for (uint32_t i = 0; i < head->n; ++i) {
      if (isfinite(head->scores[i]))
        largest = fmax(largest, fabs(head->scores[i]));
    }
    EXPECT(oracle_selection_is_right(head->scores, head->n, slots, n_keep,
                                     head->forced, 2e-5 * largest),
           "%s: layer %u, head %u keeps what it should not", what, l, h);
    return;
  }
  const bool secures = p->secure_values > 0 || p->secure_values_share > 0;
  if (secures && !SecureValues(m, l, h, n_keep, c)) return;
  uint32_t n_want = 0;
  if (p->diverse_mass > 0) {
    uint8_t stays[kTokens];
    bool by_keys = false;
    if (!test_keep_diverse_blocks(m, l, h, head, n_keep, stays, &by_keys)) {
      return;
    }
    n_want = SlotsOf(stays, head->n, want);
    c->n_by_keys += by_keys;
  }
  for (uint32_t begin = 0; p->diverse_mass == 0 && begin < head->n;) {
    const uint32_t end = test_chunk_end(p, begin, head->n);
    const uint32_t n_part = p->chunk == 0
                                ? n_keep - head->n_rescued * p->select_block
                                : c->of_chunks[l][begin / p->chunk];
    Keep(p, head, given->weights[test_model_shares(m, l) ? 0 : l][h], begin,
         end, n_part, want + n_want);
    n_want += n_part;
    begin = end;
  }
  if (head->n_rescued > 0) {
    n_want = Rescue(p, head, given->sums[l][h], want, n_want);
  }
  EXPECT(n_want == n_keep, "%s: %u of %u", what, n_want, n_keep);
  for (uint32_t i = 0; i < n_keep; ++i) {
    EXPECT(slots[i] == want[i],
           "%s: layer %u, head %u keeps slot %d of %u in place of %d", what, l,
           h, slots[i], head->n, want[i]);
  }
  c->n_rescues += head->n_rescued > 0;
}

void test_expect_chosen(const test_model* m, const test_given* given,
                        test_choice* c, const char* what) {
  /* f32 scores may part tokens among heads otherwise, and the oracle does not normalize
   * them, but as many stay. */
  const bool parts = (!c->is_exact || m->policy.normalize) &&
                     m->policy.heads != ORACLE_HEADS_EQUAL;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    uint32_t of_layer = 0, want_of_layer = 0;
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      const test_choice_head* head = &c->heads[l][h];
      const uint32_t n = test_model_stored_of(m, l, h), want = head->n_kept;
      EXPECT(parts || (n <= want + c->slack && want <= n + c->slack),
             "%s: layer %u, head %u keeps %u of %u, not %u", what, l, h, n,
             head->n, want);
      of_layer += n;
      want_of_layer += want;
      if (n < head->n) ExpectSlots(m, given, c, l, h, n, what);
    }
    EXPECT(c->slack > 0 || of_layer == want_of_layer,
           "%s: layer %u keeps %u, not %u", what, l, of_layer, want_of_layer);
  }
}
