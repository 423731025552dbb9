/* Layers whose tokens compete: what each of their heads keeps, against sorting the tokens
 * of all. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/head_split.h"
#include "tests/oracle/select.h"

enum { kLayers = 3, kHeads = 2, kLists = kLayers * kHeads, kMost = 200 };

static float scores[kLayers][kHeads][kMost];

static void DrawScores(test_random* random) {
  const bool ties = test_random_coin(random);
  for (int l = 0; l < kLayers; ++l) {
    const float level = (float)test_random_unit(random);
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kMost; ++i) {
        const float score = (float)test_random_unit(random) * level;
        scores[l][h][i] = ties ? floorf(8.0f * score) : score;
        if (test_random_below(random, 50) == 0) scores[l][h][i] = NAN;
      }
    }
  }
}

/* What all lists hold before an eviction, and must keep. */
typedef struct held {
  uint32_t n[kLists];
  int32_t positions[kLists][kMost];
  uint8_t forced[kLists][kMost];
} held;

static void Note(const test_model* m, const kvevict_evict_options* options,
                 held* out) {
  for (uint32_t i = 0; i < kLists; ++i) {
    const uint32_t l = i / kHeads, h = i % kHeads;
    out->n[i] = test_model_stored_of(m, l, h);
    test_model_positions(m, l, h, out->positions[i]);
    test_model_forced(m, l, h, options, out->forced[i]);
  }
}

/* The slots that stay of all lists together. */
static uint64_t Winners(const oracle_policy* p, uint32_t n_context) {
  if (p->budget > 1) {
    const double budget = p->budget < n_context ? p->budget : n_context;
    return kLists * (uint64_t)budget;
  }
  return p->rounding == ORACLE_ROUNDING_TOGETHER
             ? (uint64_t)(p->budget * n_context * kLists)
             : kLists * (uint64_t)(p->budget * n_context);
}

/* Heads that keep the same: of a layer's winners an equal part, and one more for those
 * layers that lost most by rounding. */
static void ShareEqually(uint32_t* counts) {
  uint32_t winners[kLayers], rest[kLayers], left = 0;
  for (int l = 0; l < kLayers; ++l) {
    winners[l] = counts[kHeads * l] + counts[kHeads * l + 1];
    rest[l] = winners[l] % kHeads;
    left += rest[l];
    winners[l] /= kHeads;
  }
  for (; left >= kHeads; left -= kHeads) {
    int best = 0;
    for (int l = 1; l < kLayers; ++l) {
      if (rest[l] > rest[best]) best = l;
    }
    if (rest[best] == 0) break;
    ++winners[best];
    rest[best] = 0;
  }
  for (int i = 0; i < kLists; ++i) counts[i] = winners[i / kHeads];
}

static void ExpectKept(const test_model* m, const held* before,
                       const char* what) {
  const oracle_policy* p = &m->policy;
  const uint32_t n_context = test_model_context(m);
  const uint64_t n_winners = Winners(p, n_context);
  uint64_t n_held = 0;
  oracle_head lists[kLists];
  for (int i = 0; i < kLists; ++i) {
    lists[i] = (oracle_head){scores[i / kHeads][i % kHeads], before->forced[i],
                             before->n[i]};
    n_held += before->n[i];
  }
  uint32_t counts[kLists];
  if (n_held <= n_winners + (uint64_t)p->margin * kLists) {
    memcpy(counts, before->n, sizeof counts);
  } else {
    const double budget =
        p->budget > 1 ? p->budget : floor(p->budget * n_context);
    const uint32_t n_safe = (uint32_t)(floor(budget) * p->floor);
    oracle_count_winners(lists, kLists, n_winners, n_safe < 1 ? 1 : n_safe,
                         counts);
    if (p->heads == ORACLE_HEADS_EQUAL) ShareEqually(counts);
  }
  for (int i = 0; i < kLists; ++i) {
    const uint32_t l = (uint32_t)i / kHeads, h = (uint32_t)i % kHeads;
    const uint32_t stored = test_model_stored_of(m, l, h);
    EXPECT(stored == counts[i], "%s: layer %u, head %u keeps %u, not %u of %u",
           what, l, h, stored, counts[i], before->n[i]);
    int32_t kept[kMost], want[kMost];
    test_model_positions(m, l, h, kept);
    oracle_select(scores[l][h], before->n[i], stored, before->forced[i], p->tie,
                  want);
    for (uint32_t s = 0; s < stored; ++s) {
      EXPECT(kept[s] == before->positions[i][want[s]],
             "%s: layer %u, head %u, slot %u is token %d, not %d", what, l, h,
             s, kept[s], before->positions[i][want[s]]);
    }
  }
  test_model_check(m, what);
}

static void Live(const char* policy, uint64_t seed, test_random* random) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = spec.max_positions = kMost;
  spec.n_threads = 1 + (uint32_t)(seed % 3);
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  /* Heads that keep different numbers have tables of their own in no cache here. */
  if (strstr(policy, "adaptive") != NULL) spec.layout = TEST_TOKEN_MAJOR;
  test_model* m = test_model_create(&spec, *random);
  const uint32_t steps[] = {90, 1, 25, 40, 30};
  for (int i = 0; i < 5; ++i) {
    test_model_append(m, steps[i]);
    DrawScores(random);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    const int32_t protect[2] = {3, 60};
    if (seed % 2 == 0) {
      options.protected_positions = protect;
      options.protected_positions_len = 2;
    }
    /* Rows of a layer are as far apart as its longest list. */
    test_inputs inputs;
    test_give_scores(&options, &inputs, kLayers, scores[0][0], kHeads * kMost,
                     kMost);
    held before;
    Note(m, &options, &before);
    EXPECT_OK(test_model_evict(m, &options, NULL));
    ExpectKept(m, &before, policy);
  }
  test_model_destroy(m);
}

TestSuite(contest);

Test(contest, keeps_the_best_of_all_layers) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=30,split=scores,heads=adaptive,floor=0",
      "custom:sink=2,recent=5,budget=30,split=scores,heads=adaptive,floor=0.3",
      "custom:sink=0,budget=0.37,split=scores,heads=adaptive,floor=0,"
      "rounding=together",
      "custom:sink=0,budget=0.37,split=scores,heads=adaptive,floor=0.1",
      "custom:sink=1,budget=30,split=scores,heads=adaptive,margin=9",
      "custom:sink=0,budget=30,split=scores,floor=0",
      "custom:sink=2,recent=5,budget=30,split=scores,floor=0.4",
      "custom:sink=0,budget=0.31,split=scores,floor=0,rounding=together",
      "custom:sink=0,budget=30,split=scores,heads=adaptive,tie=higher"};
  test_random random = test_random_start("contest");
  for (size_t p = 0; p < sizeof kPolicies / sizeof *kPolicies; ++p) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      Live(kPolicies[p], seed, &random);
    }
  }
}

/* A layer competes by rounding=together too, alone. */
Test(contest, budgets_are_rounded_where_they_should_be) {
  static const struct {
    const char* policy;
    uint32_t n_of_layer;
  } kCases[] = {
      {"custom:sink=0,budget=0.29,heads=adaptive,floor=0", 56},
      {"custom:sink=0,budget=0.29,heads=adaptive,floor=0,rounding=together",
       57},
      {"custom:sink=0,budget=0.29,heads=adaptive-blend,floor=0,"
       "rounding=together",
       56},
  };
  test_random random = test_random_start("rounding");
  for (size_t c = 0; c < sizeof kCases / sizeof *kCases; ++c) {
    test_model_spec spec = test_small_model(kCases[c].policy);
    test_model* m = test_model_create(&spec, random);
    test_model_append(m, 99);
    DrawScores(&random);
    for (int i = 0; i < kLists * kMost; ++i) {
      if (isnan((&scores[0][0][0])[i])) (&scores[0][0][0])[i] = 0.5f;
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_give_scores(&options, &inputs, 2, scores[0][0], kHeads * kMost, kMost);
    EXPECT_OK(test_model_evict(m, &options, NULL));
    for (uint32_t l = 0; l < 2; ++l) {
      const uint32_t n =
          test_model_stored_of(m, l, 0) + test_model_stored_of(m, l, 1);
      EXPECT(n == kCases[c].n_of_layer, "%s: layer %u keeps %u",
             kCases[c].policy, l, n);
    }
    test_model_check(m, kCases[c].policy);
    test_model_destroy(m);
  }
}

/* A scope of layers: its one list competes. Whole blocks of a list stay. */
Test(contest, lists_of_layers_and_blocks_compete) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=30,split=scores,scope=layer,floor=0",
      "custom:sink=0,budget=32,split=scores,select_block=8,floor=0"};
  test_random random = test_random_start("contest, lists");
  for (int p = 0; p < 2; ++p) {
    for (int trial = 0; trial < 6; ++trial) {
      test_model_spec spec = test_small_model(kPolicies[p]);
      spec.n_layers = kLayers;
      test_model* m = test_model_create(&spec, random);
      test_model_append(m, 96);
      DrawScores(&random);
      for (int i = 0; i < kLists * kMost; ++i) {
        float* const score = &(&scores[0][0][0])[i];
        if (isnan(*score)) *score = 0.0f;
        /* Layer 1 wins by far, and layer 0 loses. */
        *score += (float)(i / kHeads / kMost == 1   ? 100
                          : i / kHeads / kMost == 2 ? 50
                                                    : 0);
      }
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      test_inputs inputs;
      test_give_scores(&options, &inputs, kLayers, scores[0][0], kHeads * kMost,
                       kMost);
      EXPECT_OK(test_model_evict(m, &options, NULL));
      const uint32_t kept[kLayers] = {test_model_stored(m, 0),
                                      test_model_stored(m, 1),
                                      test_model_stored(m, 2)};
      if (p == 0) {
        EXPECT(kept[0] == 1 && kept[1] == 88 && kept[2] == 1, "%s: %u %u %u",
               kPolicies[p], kept[0], kept[1], kept[2]);
      } else {
        EXPECT(kept[0] + kept[1] + kept[2] <= 96 && kept[1] >= 80 &&
                   (96 - kept[1]) % 8 == 0 && kept[0] >= 1,
               "%s: %u %u %u", kPolicies[p], kept[0], kept[1], kept[2]);
      }
      test_model_check(m, kPolicies[p]);
      test_model_destroy(m);
    }
  }
}
