/* Sums that a sequence adds up: where they begin, and plans that they go along to.
 * Through random lives, sequence_life_test.c compares them with a naive model. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kLayers = 3, kKv = 2, kMostSlots = 120, kMostPositions = 700 };

static test_model* Model(const char* policy, uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = kMostSlots;
  spec.max_positions = kMostPositions;
  return test_model_create(&spec, (test_random){seed});
}

/* One layer, with any attention in each step. */
typedef struct scene {
  test_model* m;
  test_attention attention;
  test_random random;
} scene;

static scene* Scene(const char* policy) {
  scene* s = calloc(1, sizeof *s);
  s->random = (test_random){7};
  s->m = Model(policy, 7);
  return s;
}

static void EndScene(scene* s) {
  test_model_destroy(s->m);
  free(s);
}

/* Policy custom is given scores. */
static void Step(scene* s, uint32_t n, uint32_t n_shown) {
  if (s->m->policy.kind == ORACLE_CUSTOM) {
    EXPECT_OK(
        test_model_give_scores(s->m, s->m->n_seen + n - n_shown, n_shown));
    n_shown = 0;
  }
  for (uint32_t l = 0; n_shown > 0 && l < kLayers; ++l) {
    test_attention_draw(&s->attention, kKv, test_model_stored(s->m, l) + n,
                        &s->random);
    EXPECT_OK(test_attention_observe(s->m->sequence, l, &s->attention, n_shown,
                                     s->m->n_seen + n - n_shown));
  }
  test_model_append(s->m, n);
}

static const float* SumsOf(const test_model* m, uint32_t layer) {
  kvevict_sequence_memory memory = {.struct_size = sizeof memory};
  EXPECT_OK(kvevict_sequence_memory_of(m->sequence, layer, &memory));
  return (const float*)(uintptr_t)memory.sums;
}

/* A mean counts the rows observed from the first on. */
Test(sums, begin_with_the_first_row_that_is_observed) {
  enum { kSeen = 81, kFirst = 52, kBudget = 20 };
  scene* s = Scene("h2o:budget=20,recent=0,rows=mean");
  Step(s, 50, 0);
  Step(s, 4, 2);
  const float* const sums = SumsOf(s->m, kLayers - 1);
  for (uint32_t t = 0; t < 54; ++t) {
    EXPECT(sums[t] == s->attention.values[0][t], "slot %u", t);
  }
  Step(s, 27, 27);
  double mean[kSeen];
  uint8_t stays[kSeen] = {0};
  for (uint32_t t = 0; t < kSeen; ++t) {
    mean[t] = (double)sums[t] / (kSeen - (t > kFirst ? t : kFirst));
  }
  for (uint32_t n = 0; n < kBudget; ++n) {
    uint32_t best = kSeen;
    for (uint32_t t = 0; t < kSeen; ++t) {
      if (!stays[t] && (best == kSeen || mean[t] > mean[best])) best = t;
    }
    stays[best] = 1;
  }
  EXPECT_OK(test_model_evict(s->m, NULL, NULL));
  int32_t positions[kMostSlots];
  test_model_positions(s->m, kLayers - 1, 0, positions);
  for (uint32_t i = 0; i < kBudget; ++i) {
    EXPECT(stays[positions[i]], "%d has gone", positions[i]);
  }
  EndScene(s);
}

/* The plan may change budget, scope and half-life, but not the signal, the rows or their
 * length. */
Test(sums, go_along_to_another_plan) {
  static const char kSums[] = "h2o:budget=30,recent=4,scope=layer";
  static const char kScores[] = "custom:budget=30";
  static const struct {
    const char *from, *to;
    uint32_t max_tokens; /* 0: as before */
    uint32_t most;       /* slots then; 0: the sums do not go along */
  } kCases[] = {{kSums, "h2o:budget=20,recent=2", 0, 20},
                {kSums, "h2o:budget=20,recent=2,scope=head", 0, 20},
                {kSums, "h2o:budget=20,recent=2,sums=layer,scope=layer", 0, 0},
                {kSums, "h2o:budget=20,recent=2", 60, 0},
                {kScores, "custom:budget=9", 0, 9},
                {kScores, "custom:budget=9,half_life=5,heads=threshold", 0, 9},
                {kScores, "custom:budget=9", 60, 0},
                {kScores, "h2o:budget=9,recent=2", 0, 0}};
  for (int i = 0; i < 8; ++i) {
    scene* s = Scene(kCases[i].from);
    Step(s, 40, 40);
    EXPECT_OK(test_model_evict(s->m, NULL, NULL));
    float before[kLayers][30];
    for (uint32_t l = 0; l < kLayers; ++l) {
      memcpy(before[l], SumsOf(s->m, l), sizeof before[l]);
    }
    kvevict_geometry geometry = s->m->geometry;
    if (kCases[i].max_tokens > 0) geometry.max_tokens = kCases[i].max_tokens;
    EXPECT_OK(test_model_go_on(s->m, kCases[i].to, &geometry, NULL));
    if (kCases[i].most > 0) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        EXPECT(memcmp(before[l], SumsOf(s->m, l), sizeof before[l]) == 0,
               "%s: sums of layer %u", kCases[i].to, l);
      }
      EXPECT_OK(test_model_evict(s->m, NULL, NULL));
      EXPECT(test_model_stored(s->m, 0) <= kCases[i].most, "%s: %u slots",
             kCases[i].to, test_model_stored(s->m, 0));
      test_model_check(s->m, kCases[i].to);
    } else {
      EXPECT_INVALID(test_model_evict(s->m, NULL, NULL), "is NULL");
    }
    EndScene(s);
  }
}
