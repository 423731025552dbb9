#include "tests/capi/support/tallies.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"

enum { kTokens = TEST_STATE_TOKENS };

void test_tallies_begin(test_living* a) {
  const test_model_spec* spec = &a->m->spec;
  const oracle_policy* p = &a->m->policy;
  a->n_rows = spec->n_kv_heads;
  if (p->kind == ORACLE_H2O) {
    a->tally = TEST_TALLY_SUMS;
    if (p->sums == ORACLE_SUMS_QUERY) a->n_rows = spec->n_q_heads;
    if (p->sums == ORACLE_SUMS_LAYER) a->n_rows = 1;
  } else if (p->half_life > 0 ||
             (p->kind == ORACLE_CUSTOM && p->weight == ORACLE_WEIGHT_NONE &&
              !spec->last_shares && test_random_below(a->random, 3) == 0)) {
    a->tally = TEST_TALLY_SCORES;
  }
}

/* The head whose slots a row is of. */
static uint32_t HeadOf(const test_living* a, uint32_t row) {
  return a->n_rows == 1 ? 0 : row / (a->n_rows / a->m->spec.n_kv_heads);
}

/* ---- Scores ---- */

static float DrawScore(const test_living* a) {
  if (a->m->policy.half_life > 0) return test_random_normal(a->random);
  switch (test_random_below(a->random, 40)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -0.0f;
    default:
      return (float)((int)test_random_below(a->random, 64) - 32) / 8.0f;
  }
}

/* Draws the scores of the tokens [from, from + n) behind those that lists hold. */
static void DrawScores(test_living* a, uint32_t from, uint32_t n) {
  TEST_EACH_LIST(a, l, h) {
    float* const scores = a->now.tallies[l][h] + a->now.n[l][h];
    for (uint32_t i = from; i < from + n; ++i) scores[i] = DrawScore(a);
  }
}

/* Gives the scores of these tokens, of all layers together or of each by itself. */
static void GiveScores(const test_living* a, uint32_t from, uint32_t n,
                       uint32_t first) {
  const uint32_t n_layers = a->m->spec.n_layers, heads = a->m->spec.n_kv_heads;
  const uint32_t stride = n + test_random_below(a->random, 8);
  float* const scores =
      malloc(sizeof *scores * (size_t)n_layers * heads * stride);
  kvevict_plane planes[TEST_STATE_LAYERS];
  kvevict_signal_inputs inputs[TEST_STATE_LAYERS];
  kvevict_observation shown[TEST_STATE_LAYERS];
  TEST_EACH_LIST(a, l, h) {
    memcpy(scores + ((size_t)l * heads + h) * stride,
           a->now.tallies[l][h] + a->now.n[l][h] + from, n * sizeof *scores);
  }
  for (uint32_t l = 0; l < n_layers; ++l) {
    planes[l] = test_floats_plane(scores + (size_t)l * heads * stride, stride);
    inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs[l].scores = &planes[l];
    shown[l] = (kvevict_observation){sizeof *shown, l, &inputs[l]};
  }
  const uint32_t at_once = test_random_coin(a->random) ? n_layers : 1;
  for (uint32_t l = 0; l < n_layers; l += at_once) {
    EXPECT_OK(kvevict_sequence_observe(a->m->sequence, &shown[l], at_once, n,
                                       first, NULL));
  }
  free(scores);
}

static void AppendWithScores(test_living* a, uint32_t n) {
  const uint32_t first = a->now.n_seen;
  const bool before = test_random_coin(a->random);
  const uint32_t n_first = test_random_below(a->random, n + 1);
  DrawScores(a, 0, n);
  if (!before) test_model_append(a->m, n);
  if (before && test_random_coin(a->random)) {
    GiveScores(a, 0, n, KVEVICT_POSITION_NEXT);
  } else {
    GiveScores(a, 0, n_first, first);
    GiveScores(a, n_first, n - n_first, first + n_first);
  }
  if (before) test_model_append(a->m, n);
  if (test_random_below(a->random, 4) > 0) return;
  /* Some of the last tokens get other scores. */
  const uint32_t from = test_random_below(a->random, n);
  const uint32_t n_again = test_random_between(a->random, 1, n - from);
  DrawScores(a, from, n_again);
  GiveScores(a, from, n_again, first + from);
}

/* ---- Sums of attention ---- */

/* The value of a row of sums in a slot. */
static float Reduced(const test_living* a, const test_attention* shown,
                     uint32_t row, uint32_t t) {
  const oracle_policy* p = &a->m->policy;
  const uint32_t n = shown->n_rows / a->n_rows;
  const bool of_layer = p->sums == ORACLE_SUMS_LAYER;
  float all = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float one = shown->values[row * n + i][t];
    if (!of_layer && p->group == KVEVICT_REDUCE_MAX) {
      all = i == 0 || one > all ? one : all;
    } else {
      all += one;
    }
  }
  return !of_layer && p->group == KVEVICT_REDUCE_MEAN ? all / (float)n : all;
}

/* Adds what the slots of a layer received. New tokens start at 0. */
static void AddSums(test_living* a, uint32_t l, const test_attention* shown,
                    uint32_t n_new) {
  for (uint32_t row = 0; row < a->n_rows; ++row) {
    const uint32_t n_held = a->now.n[l][HeadOf(a, row)], n = n_held + n_new;
    float* const sums = a->now.tallies[l][row];
    for (uint32_t t = 0; t < n; ++t) {
      float most = Reduced(a, shown, row, t);
      for (uint32_t i = t + 1; i < n && i < t + a->m->policy.sum_pool; ++i) {
        most = fmaxf(most, Reduced(a, shown, row, i));
      }
      sums[t] = t < n_held ? sums[t] + most : most;
    }
  }
}

/* ---- Calls that are kept apart, for `sum_last` ---- */

static void AddCall(test_living* a, uint32_t l, const test_attention* shown,
                    uint32_t n_new) {
  test_calls* const calls = &a->now.calls[l];
  const uint32_t most = a->m->policy.sum_last;
  if (calls->n == most) {
    memmove(&calls->of[0], &calls->of[1], (most - 1) * sizeof calls->of[0]);
    --calls->n;
  }
  memset(&calls->of[calls->n], 0, sizeof calls->of[0]);
  for (uint32_t t = 0; t < a->now.n[l][0] + n_new; ++t) {
    calls->of[calls->n].values[t] = Reduced(a, shown, 0, t);
  }
  calls->of[calls->n++].end = a->now.n_seen + n_new;
  ++calls->n_ever;
  if (calls->n_counted < most) ++calls->n_counted;
}

/* What the calls that count gave a slot or, pooled, one of the next. */
static float SumOfCalls(const test_living* a, uint32_t l, uint32_t slot) {
  const test_calls* const calls = &a->now.calls[l];
  const bool is_raw = a->m->policy.raw_first && calls->n_ever == 1;
  const uint32_t width = is_raw ? 1 : a->m->policy.sum_pool;
  float most = 0.0f;
  for (uint32_t t = slot; t < a->now.n[l][0] && t < slot + width; ++t) {
    float sum = 0.0f;
    for (uint32_t i = calls->n - calls->n_counted; i < calls->n; ++i) {
      sum += calls->of[i].values[t];
    }
    most = fmaxf(most, sum);
  }
  return most;
}

/* The calls from before an eviction count again, beside those that came later. */
static void MergeCalls(test_living* a, uint32_t l, const test_state* then) {
  const test_calls *before = &a->now.calls[l], *later = &then->calls[l];
  const uint32_t n_before = later->n - later->n_counted;
  test_calls merged = *later;
  merged.n_counted = merged.n;
  for (uint32_t i = 0; i < merged.n; ++i) {
    if (i < n_before) {
      merged.of[i] = before->of[before->n - n_before + i];
      continue;
    }
    memset(merged.of[i].values, 0, sizeof merged.of[i].values);
    for (uint32_t t = 0, at = 0; t < then->n[l][0]; ++t) {
      while (a->now.positions[l][0][at] < then->positions[l][0][t]) ++at;
      merged.of[i].values[at] = later->of[i].values[t];
    }
  }
  a->now.calls[l] = merged;
}

/* ---- Sums or calls ---- */

/* What a layer is shown. */
typedef struct shown_sums {
  test_attention attention;
  kvevict_plane plane;
  kvevict_signal_inputs inputs;
} shown_sums;

/* Draws it, and adds it to the naive model. An engine's rows are those of the sums, or of
 * all query heads. */
static kvevict_observation DrawSums(test_living* a, uint32_t l, uint32_t n_new,
                                    shown_sums* out) {
  const uint32_t n_given =
      test_random_coin(a->random) ? a->n_rows : a->m->spec.n_q_heads;
  test_attention_draw(&out->attention, n_given, a->now.n[l][0] + n_new,
                      a->random);
  if (a->m->policy.sum_last > 0) {
    AddCall(a, l, &out->attention, n_new);
  } else {
    AddSums(a, l, &out->attention, n_new);
  }
  out->inputs = test_attention_inputs(&out->attention, &out->plane);
  return (kvevict_observation){sizeof(kvevict_observation), l, &out->inputs};
}

static void AppendWithSums(test_living* a, uint32_t n) {
  const uint32_t n_layers = a->m->spec.n_layers;
  const bool before = test_random_coin(a->random);
  const uint32_t first = before && test_random_coin(a->random)
                             ? KVEVICT_POSITION_NEXT
                             : a->now.n_seen;
  shown_sums* const shown = malloc(n_layers * sizeof *shown);
  kvevict_observation all[TEST_STATE_LAYERS];
  for (uint32_t l = 0; l < n_layers; ++l) all[l] = DrawSums(a, l, n, &shown[l]);
  if (!before) test_model_append(a->m, n);
  EXPECT_OK(
      kvevict_sequence_observe(a->m->sequence, all, n_layers, n, first, NULL));
  if (before) test_model_append(a->m, n);
  free(shown);
}

/* Drops the calls whose rows were taken back. A layer that has none left is shown the last
 * row again. */
static void TrimCalls(test_living* a, uint32_t l) {
  test_calls* const calls = &a->now.calls[l];
  const uint32_t n_seen = a->now.n_seen;
  while (calls->n > 0 && calls->of[calls->n - 1].end > n_seen) {
    if (calls->n_counted > 0) --calls->n_counted;
    --calls->n_ever;
    --calls->n;
  }
  if (calls->n_counted > 0 || n_seen == 0) return;
  shown_sums* const shown = malloc(sizeof *shown);
  const kvevict_observation one = DrawSums(a, l, 0, shown);
  EXPECT_OK(
      kvevict_sequence_observe(a->m->sequence, &one, 1, 1, n_seen - 1, NULL));
  free(shown);
}

/* ---- All ---- */

void test_tallies_append(test_living* a, uint32_t n) {
  if (n == 0 || a->tally == TEST_TALLY_NONE) {
    test_model_append(a->m, n);
  } else if (a->tally == TEST_TALLY_SCORES) {
    AppendWithScores(a, n);
  } else {
    AppendWithSums(a, n);
  }
}

/* Gives the tokens of `now` the numbers that they have in `from`, if they are there. */
static void Carry(test_living* a, const test_state* from) {
  test_state* const to = &a->now;
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) {
    for (uint32_t row = 0; row < a->n_rows; ++row) {
      const uint32_t h = HeadOf(a, row);
      uint32_t at = 0;
      for (uint32_t i = 0; i < to->n[l][h]; ++i) {
        const int32_t position = to->positions[l][h][i];
        while (at < from->n[l][h] && from->positions[l][h][at] < position) ++at;
        if (at < from->n[l][h] && from->positions[l][h][at] == position) {
          to->tallies[l][row][i] = from->tallies[l][row][at];
        }
      }
    }
  }
}

void test_tallies_evicted(test_living* a, const test_state* was,
                          bool is_saved) {
  Carry(a, was);
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) {
    test_calls* const calls = &a->now.calls[l];
    memmove(&calls->of[0], &calls->of[calls->n - calls->n_counted],
            calls->n_counted * sizeof calls->of[0]);
    calls->n = calls->n_counted;
    if (a->now.n[l][0] == was->n[l][0]) continue;
    calls->n_counted = 0;
    if (!is_saved) calls->n = 0;
  }
}

void test_tallies_undone(test_living* a, const test_state* then) {
  Carry(a, then);
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) MergeCalls(a, l, then);
}

void test_tallies_trimmed(test_living* a) {
  if (a->m->policy.sum_last == 0) return;
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) TrimCalls(a, l);
}

/* A sum of query heads or the layer counts for each KV head. */
static float ScoreOf(const test_living* a, uint32_t l, uint32_t h, uint32_t i) {
  const oracle_policy* p = &a->m->policy;
  if (p->sum_last > 0) return SumOfCalls(a, l, i);
  const uint32_t n = a->n_rows == 1 ? 1 : a->n_rows / a->m->spec.n_kv_heads;
  const uint32_t first = a->n_rows == 1 ? 0 : h * n;
  float score = a->now.tallies[l][first][i];
  for (uint32_t row = first + 1; row < first + n; ++row) {
    const float one = a->now.tallies[l][row][i];
    score = p->group == KVEVICT_REDUCE_MAX ? fmaxf(score, one) : score + one;
  }
  if (n > 1 && p->group == KVEVICT_REDUCE_MEAN) score /= (float)n;
  const uint32_t n_after = a->now.n_seen - (uint32_t)a->now.positions[l][h][i];
  if (a->tally == TEST_TALLY_SUMS && p->rows == KVEVICT_REDUCE_MEAN) {
    return score / (float)n_after;
  }
  const double age = (double)n_after - 1;
  return p->half_life == 0 ? score : score * (float)exp2(-age / p->half_life);
}

void test_tallies_give(const test_living* a, test_given* given) {
  TEST_EACH_LIST(a, l, h) {
    for (uint32_t i = 0; i < a->now.n[l][h]; ++i) {
      given->scores[l][h][i] = ScoreOf(a, l, h, i);
      given->sums[l][h][i] = a->now.tallies[l][a->n_rows == 1 ? 0 : h][i];
    }
  }
}

void test_tallies_check(const test_living* a) {
  for (uint32_t l = 0; l < a->m->spec.n_layers; ++l) {
    if (a->tally == TEST_TALLY_NONE) return;
    kvevict_sequence_memory memory = {.struct_size = sizeof memory};
    EXPECT_OK(kvevict_sequence_memory_of(a->m->sequence, l, &memory));
    const bool is_told = a->m->policy.sum_last == 0;
    EXPECT(memory.n_sum_heads == (is_told ? a->n_rows : 0) &&
               memory.sum_stride == (is_told ? a->m->spec.max_tokens : 0) &&
               (memory.sums != 0) == is_told,
           "%s: %u rows of %llu", a->what, memory.n_sum_heads,
           (unsigned long long)memory.sum_stride);
    if (!is_told) continue;
    const float* const numbers = (const float*)(uintptr_t)memory.sums;
    for (uint32_t row = 0; row < a->n_rows; ++row) {
      for (uint32_t i = 0; i < a->now.n[l][HeadOf(a, row)]; ++i) {
        const float got = numbers[row * memory.sum_stride + i];
        const float want = a->now.tallies[l][row][i];
        EXPECT(
            (isnan(got) && isnan(want)) || memcmp(&got, &want, sizeof got) == 0,
            "%s: layer %u, row %u, slot %u has %g, not %g", a->what, l, row, i,
            (double)got, (double)want);
      }
    }
  }
}
