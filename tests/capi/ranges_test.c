/* Ranges that go later or sooner than others, in evictions of whole models. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/ranges.h"
#include "tests/oracle/select.h"

enum { kMaxTokens = 160, kHeads = 2, kLayers = 2 };

/* The content of a head before an eviction, its scores and their ranks. */
typedef struct snapshot {
  uint32_t n;
  int32_t positions[kMaxTokens];
  uint8_t forced[kMaxTokens];
  int32_t ranks[kMaxTokens];
  float scores[kMaxTokens]; /* of the head's list */
} snapshot;

typedef struct trial {
  test_model* m;
  float scores[kLayers][kHeads][kMaxTokens];
  kvevict_evict_options options;
  test_inputs inputs;
  test_ranges ranges;
  snapshot before[kLayers][kHeads];
} trial;

static bool HasScores(const trial* t) {
  return t->m->policy.kind == ORACLE_CUSTOM;
}

static void Snap(trial* t, uint32_t l, uint32_t h) {
  const test_model* m = t->m;
  const oracle_policy* p = &m->policy;
  snapshot* s = &t->before[l][h];
  s->n = test_model_stored_of(m, l, h);
  test_model_positions(m, l, h, s->positions);
  const uint32_t n_last = HasScores(t) ? p->recent : 1;
  for (uint32_t i = 0; i < s->n; ++i) {
    const uint32_t of_chunk = p->chunk == 0 ? i : i % p->chunk;
    s->forced[i] = of_chunk < p->sink || i + n_last >= s->n;
    for (size_t j = 0; j < t->options.protected_positions_len; ++j) {
      s->forced[i] |= t->options.protected_positions[j] == s->positions[i];
    }
    s->ranks[i] = test_rank_of(&t->ranges, (uint32_t)s->positions[i]);
  }
  float rows[kLayers * kHeads * kMaxTokens];
  uint32_t n_rows = 0;
  for (uint32_t l2 = 0; l2 < kLayers; ++l2) {
    for (uint32_t h2 = 0; h2 < kHeads; ++h2) {
      if (l2 != l && p->scope != KVEVICT_SCOPE_MODEL) continue;
      if (h2 != h && p->scope == KVEVICT_SCOPE_KV_HEAD) continue;
      memcpy(rows + (size_t)n_rows * s->n, t->scores[l2][h2],
             s->n * sizeof *rows);
      ++n_rows;
    }
  }
  oracle_combine(rows, n_rows, s->n, p->over, s->scores);
}

/* The slots of [begin, end) before the eviction that are held now. */
static void ExpectPart(const trial* t, uint32_t l, uint32_t h, uint32_t begin,
                       uint32_t end, const char* what) {
  const snapshot* s = &t->before[l][h];
  const uint32_t n = test_model_stored_of(t->m, l, h);
  int32_t positions[kMaxTokens], slots[kMaxTokens], expected[kMaxTokens];
  test_model_positions(t->m, l, h, positions);
  uint32_t n_keep = 0, next = 0;
  for (uint32_t i = 0; i < end; ++i) {
    if (next == n || positions[next] != s->positions[i]) continue;
    ++next;
    if (i >= begin) slots[n_keep++] = (int32_t)(i - begin);
  }
  oracle_select_ranked(
      HasScores(t) ? s->scores + begin : NULL, s->ranks + begin, end - begin,
      n_keep, s->forced + begin, t->m->policy.select_block,
      HasScores(t) ? t->m->policy.tie : KVEVICT_TIE_HIGHER_POSITION, expected);
  EXPECT(memcmp(slots, expected, n_keep * sizeof *slots) == 0,
         "%s: layer %u, head %u, from slot %u: not the oracle's choice of %u "
         "of %u",
         what, l, h, begin, n_keep, end - begin);
}

static float RandomScore(test_random* random) {
  static const float kSpecials[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
  if (test_random_below(random, 8) == 0) {
    return kSpecials[test_random_below(random, 5)];
  }
  return (float)test_random_below(random, 6) / 4.0f;
}

static void Evict(trial* t, test_random* random, bool protects,
                  const char* what) {
  const test_model* m = t->m;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t i = 0; i < kMaxTokens; ++i) {
        t->scores[l][h][i] = RandomScore(random);
      }
    }
  }
  int32_t protect[2];
  t->options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
  t->options.protected_positions = protect;
  t->options.protected_positions_len =
      protects ? test_random_below(random, 3) : 0;
  test_random_ascending(
      random, protect, (uint32_t)t->options.protected_positions_len, m->n_seen);
  test_give_scores(&t->options, &t->inputs, kLayers, t->scores[0][0],
                   kHeads * kMaxTokens, kMaxTokens);
  t->options.ranges = t->ranges.of;
  t->options.ranges_len = t->ranges.n;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) Snap(t, l, h);
  }
  EXPECT_OK(test_model_evict(t->m, &t->options, NULL));
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t n = t->before[l][h].n;
      const uint32_t chunk = m->policy.chunk == 0 ? n : m->policy.chunk;
      for (uint32_t begin = 0; begin < n; begin += chunk) {
        ExpectPart(t, l, h, begin, begin + chunk < n ? begin + chunk : n, what);
      }
    }
  }
}

static void RandomPolicy(test_random* random, char* text, size_t capacity,
                         const char* kind) {
  static const char* const kScopes[] = {"head", "layer", "model"};
  static const char* const kMore[] = {"", ",chunk=40", ",select_block=8"};
  snprintf(text, capacity,
           "%s:budget=%u,sink=%u,recent=%u,scope=%s,over=max,tie=%s%s", kind,
           test_random_between(random, 48, 70), test_random_below(random, 4),
           test_random_below(random, 8), kScopes[test_random_below(random, 3)],
           test_random_coin(random) ? "lower" : "higher",
           kMore[test_random_below(random, 3)]);
}

Test(ranges, agree_with_the_oracle_through_evictions) {
  test_random random = test_random_start("ranges oracle");
  for (int round = 0; round < 150; ++round) {
    char text[256];
    static trial t;
    RandomPolicy(&random, text, sizeof text, "custom");
    test_model_spec spec = test_small_model(text);
    spec.max_tokens = kMaxTokens;
    spec.max_positions = 2 * kMaxTokens;
    spec.layout = (test_layout)test_random_below(&random, TEST_N_LAYOUTS);
    const uint32_t budgets[] = {48, 61, 52, 54};
    const bool ragged = strstr(text, "scope=head") != NULL &&
                        strstr(text, "chunk") == NULL &&
                        test_random_coin(&random);
    if (ragged) spec.head_budgets = budgets;
    t.m = test_model_create(&spec, random);
    t.ranges = test_random_ranges(&random, 5, 200);
    test_model_append(t.m, test_random_between(&random, 80, kMaxTokens));
    for (int i = 0; i < 3; ++i) {
      Evict(&t, &random, strstr(text, "chunk") == NULL, text);
      test_model_check(t.m, text);
      test_model_append(t.m, 30);
    }
    test_model_destroy(t.m);
  }
}

/* The sequence's recent tokens stay, then ranks decide. */
Test(ranges, rank_places_of_streaming_llm) {
  test_random random = test_random_start("ranges streaming");
  for (int round = 0; round < 60; ++round) {
    static trial t;
    char text[64];
    snprintf(text, sizeof text, "streaming-llm:budget=%u,sink=%u%s",
             test_random_between(&random, 30, 60),
             test_random_below(&random, 4),
             test_random_coin(&random) ? "" : ",select_block=8");
    test_model_spec spec = test_small_model(text);
    spec.max_tokens = kMaxTokens;
    spec.max_positions = 2 * kMaxTokens;
    t.m = test_model_create(&spec, random);
    t.ranges = test_random_ranges(&random, 5, 160);
    test_model_append(t.m, 120);
    for (int i = 0; i < 3; ++i) {
      Evict(&t, &random, true, text);
      test_model_append(t.m, 20);
    }
    test_model_destroy(t.m);
  }
}

/* Scores decide how many tokens a head keeps, and ranks decide which. */
Test(ranges, leave_heads_as_many_as_their_scores_say) {
  static const char* const kHeadSplits[] = {
      "custom:budget=40,sink=1,heads=adaptive",
      "custom:budget=40,sink=1,heads=adaptive,floor=0.8",
      "custom:budget=40,recent=3,heads=adaptive-blend",
      "custom:budget=40,sink=1,heads=adaptive,normalize=yes",
      "custom:budget=40,heads=threshold,threshold=0.6"};
  test_random random = test_random_start("ranges heads");
  for (int round = 0; round < 100; ++round) {
    const char* text = kHeadSplits[round % 5];
    static trial with, without;
    test_model_spec spec = test_small_model(text);
    spec.max_tokens = kMaxTokens;
    spec.max_positions = 2 * kMaxTokens;
    with.m = test_model_create(&spec, random);
    without.m = test_model_create(&spec, random);
    with.ranges = test_random_ranges(&random, 5, 120);
    without.ranges.n = 0;
    test_model_append(with.m, 120);
    test_model_append(without.m, 120);
    test_random same = random;
    Evict(&with, &random, false, text);
    Evict(&without, &same, false, text);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        EXPECT(test_model_stored_of(with.m, l, h) ==
                   test_model_stored_of(without.m, l, h),
               "%s: layer %u, head %u: %u, not %u", text, l, h,
               test_model_stored_of(with.m, l, h),
               test_model_stored_of(without.m, l, h));
      }
    }
    test_model_check(with.m, text);
    test_model_destroy(with.m);
    test_model_destroy(without.m);
  }
}

/* Both stages choose the best by rank. */
Test(ranges, rank_both_stages_of_secure) {
  test_random random = test_random_start("ranges secure");
  for (int round = 0; round < 60; ++round) {
    static trial t;
    const double share = 0.25 * test_random_below(&random, 5);
    char text[96];
    snprintf(text, sizeof text,
             "custom:budget=40,sink=2,secure=%g,weight=given", share);
    test_model_spec spec = test_small_model(text);
    spec.max_tokens = kMaxTokens;
    spec.max_positions = 2 * kMaxTokens;
    t.m = test_model_create(&spec, random);
    t.ranges = test_random_ranges(&random, 5, 120);
    test_model_append(t.m, 110);
    static float weights[kLayers][kHeads][kMaxTokens];
    kvevict_plane planes[kLayers];
    t.options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t i = 0; i < kHeads * kMaxTokens; ++i) {
        t.scores[l][i / kMaxTokens][i % kMaxTokens] =
            (float)test_random_below(&random, 100);
        weights[l][i / kMaxTokens][i % kMaxTokens] =
            (float)test_random_below(&random, 4);
      }
    }
    test_give_scores(&t.options, &t.inputs, kLayers, t.scores[0][0],
                     kHeads * kMaxTokens, kMaxTokens);
    for (uint32_t l = 0; l < kLayers; ++l) {
      planes[l] = t.inputs.planes[l];
      planes[l].data = (uintptr_t)weights[l];
      t.inputs.inputs[l].token_weights = &planes[l];
    }
    t.options.ranges = t.ranges.of;
    t.options.ranges_len = t.ranges.n;
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        Snap(&t, l, h);
        snapshot* s = &t.before[l][h];
        int32_t secured[kMaxTokens];
        const uint32_t n_secured = (uint32_t)(40 * share);
        oracle_select_ranked(s->scores, s->ranks, s->n, n_secured, s->forced, 1,
                             t.m->policy.tie, secured);
        for (uint32_t i = 0; i < s->n; ++i) s->scores[i] *= weights[l][h][i];
        for (uint32_t i = 0; i < n_secured; ++i) {
          s->scores[secured[i]] = INFINITY;
        }
      }
    }
    EXPECT_OK(test_model_evict(t.m, &t.options, NULL));
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        ExpectPart(&t, l, h, 0, t.before[l][h].n, text);
      }
    }
    test_model_destroy(t.m);
  }
}

Test(ranges, wrong_ones_leave_the_cache_alone) {
  test_model* m = test_model_of("random:budget=20,sink=0", 1);
  test_model_append(m, 60);
  kvevict_token_range ranges[2] = {KVEVICT_TOKEN_RANGE_INIT,
                                   KVEVICT_TOKEN_RANGE_INIT};
  ranges[0].first = 5, ranges[0].end = 9, ranges[1].first = 8;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.ranges = ranges;
  options.ranges_len = 2;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "ranges[1]: first 8");
  options.ranges = NULL;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "ranges", "NULL");
  cr_expect_eq(test_model_stored(m, 0), 60);
  test_model_check(m, "refused");
  test_model_destroy(m);
}
