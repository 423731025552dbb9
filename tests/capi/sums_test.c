/* Attention sums that a sequence adds up: policies keep what they keep if the
 * engine adds up itself. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/attention.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kLayers = 3, kQ = 4, kKv = 2, kMostSlots = 120, kMostPositions = 700 };

static test_model* Model(const char* policy, uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = kMostSlots;
  spec.max_positions = kMostPositions;
  return test_model_create(&spec, (test_random){seed});
}

/* The engine's sums by row and position, whatever is evicted. */
typedef struct ledger {
  uint32_t n_rows;
  float sum[kQ][kMostPositions];
} ledger;

static uint32_t SumRows(const oracle_policy* policy) {
  switch (policy->sums) {
    case ORACLE_SUMS_HEAD:
      return kKv;
    case ORACLE_SUMS_QUERY:
      return kQ;
    default:
      return 1;
  }
}

/* The value of a row of sums in a slot. */
static float Reduced(const oracle_policy* policy, const test_attention* a,
                     uint32_t row, uint32_t t) {
  const uint32_t n = a->n_rows / SumRows(policy);
  const bool of_layer = policy->sums == ORACLE_SUMS_LAYER;
  float all = 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float one = a->values[row * n + i][t];
    if (!of_layer && policy->group == KVEVICT_REDUCE_MAX) {
      all = i == 0 || one > all ? one : all;
    } else {
      all += one;
    }
  }
  const bool is_mean = !of_layer && policy->group == KVEVICT_REDUCE_MEAN;
  return is_mean ? all / (float)n : all;
}

/* Adds what the slots of a layer received. New tokens start at 0. */
static void Add(ledger* led, const test_model* m, uint32_t layer,
                const test_attention* a, uint32_t n_new) {
  int32_t positions[kMostSlots];
  led->n_rows = SumRows(&m->policy);
  for (uint32_t row = 0; row < led->n_rows; ++row) {
    const uint32_t head = led->n_rows == 1 ? 0 : row / (led->n_rows / kKv);
    const uint32_t n = test_model_stored_of(m, layer, head) + n_new;
    test_model_positions(m, layer, head, positions);
    for (uint32_t t = 0; t < n; ++t) {
      float most = Reduced(&m->policy, a, row, t);
      for (uint32_t i = t + 1; i < n && i < t + m->policy.sum_pool; ++i) {
        const float next = Reduced(&m->policy, a, row, i);
        if (next > most) most = next;
      }
      const uint32_t position =
          t < n - n_new ? (uint32_t)positions[t] : m->n_seen + t - (n - n_new);
      led->sum[row][position] += most;
    }
  }
}

/* Gives the ledger's sums of the held slots as attention_sums. */
static void Give(const ledger* led, const test_model* m, uint32_t layer,
                 float* values, kvevict_plane* plane,
                 kvevict_signal_inputs* inputs) {
  int32_t positions[kMostSlots];
  *inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  *plane = test_floats_plane(values, kMostSlots);
  inputs->attention_sums = plane;
  inputs->n_sum_heads = led->n_rows;
  for (uint32_t row = 0; row < led->n_rows; ++row) {
    const uint32_t head = led->n_rows == 1 ? 0 : row / (led->n_rows / kKv);
    const uint32_t n = test_model_stored_of(m, layer, head);
    test_model_positions(m, layer, head, positions);
    for (uint32_t t = 0; t < n; ++t) {
      values[row * kMostSlots + t] = led->sum[row][positions[t]];
    }
  }
}

/* On the CPU the sequence's own sums are the ledger's. */
static void ExpectSums(const ledger* led, const test_model* m, uint32_t layer,
                       const char* what) {
  int32_t positions[kMostSlots];
  kvevict_sequence_memory memory = {.struct_size = sizeof memory};
  EXPECT_OK(kvevict_sequence_memory_of(m->sequence, layer, &memory));
  EXPECT(memory.n_sum_heads == led->n_rows && memory.sum_stride == kMostSlots,
         "%s: %u rows of %llu", what, memory.n_sum_heads,
         (unsigned long long)memory.sum_stride);
  const float* const sums = (const float*)(uintptr_t)memory.sums;
  for (uint32_t row = 0; row < led->n_rows; ++row) {
    const uint32_t head = led->n_rows == 1 ? 0 : row / (led->n_rows / kKv);
    test_model_positions(m, layer, head, positions);
    for (uint32_t t = 0; t < test_model_stored_of(m, layer, head); ++t) {
      EXPECT(sums[row * kMostSlots + t] == led->sum[row][positions[t]],
             "%s: layer %u, row %u, slot %u: %g, not %g", what, layer, row, t,
             sums[row * kMostSlots + t], led->sum[row][positions[t]]);
    }
  }
}

static uint32_t MostStored(const test_model* m) {
  uint32_t most = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t stored = test_model_stored(m, l);
    if (stored > most) most = stored;
  }
  return most;
}

/* Both go back by some of the tokens since the last eviction, or to nothing. New slots
 * begin at 0, whatever was there. */
static void GoBack(test_model* m, test_model* other, uint32_t to,
                   ledger* ledgers) {
  test_model* const both[2] = {m, other};
  for (int i = 0; i < 2; ++i) {
    if (to == 0) {
      EXPECT_OK(kvevict_sequence_reset(both[i]->sequence, NULL));
    } else {
      EXPECT_OK(kvevict_sequence_trim_to(both[i]->sequence, to, NULL));
    }
    both[i]->n_seen = to;
  }
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t row = 0; row < kQ; ++row) {
      memset(ledgers[l].sum[row] + to, 0, (kMostPositions - to) * 4);
    }
  }
}

/* One sequence observes, and one is given the ledger's sums. */
static void Run(const char* policy, uint64_t seed) {
  static ledger ledgers[kLayers];
  static test_attention attention[kLayers];
  static float values[kLayers][kQ * kMostSlots];
  test_random random = {seed};
  test_model* m = Model(policy, seed);
  test_model* other = Model(policy, seed);
  memset(ledgers, 0, sizeof ledgers);
  bool evicted = false;
  uint32_t tail = 0; /* trims to this length or beyond are exact */
  for (int round = 0; m->n_seen < 400; ++round) {
    if (round == 25) GoBack(m, other, tail = 0, ledgers);
    const uint32_t n =
        test_random_below(&random, 9) > 0 || MostStored(m) > kMostSlots - 30
            ? 1
            : 1 + test_random_below(&random, 30);
    if (MostStored(m) + n > kMostSlots) break;
    const uint32_t first =
        test_random_coin(&random) ? m->n_seen : KVEVICT_POSITION_NEXT;
    kvevict_observation shown[kLayers];
    kvevict_signal_inputs inputs[kLayers];
    kvevict_plane planes[kLayers];
    const uint32_t n_rows = SumRows(&m->policy)
                            << test_random_below(&random, 2);
    for (uint32_t l = 0; l < kLayers; ++l) {
      test_attention_draw(&attention[l], n_rows > kQ ? kQ : n_rows,
                          test_model_stored(m, l) + n, &random);
      Add(&ledgers[l], m, l, &attention[l], n);
      inputs[l] = test_attention_inputs(&attention[l], &planes[l]);
      shown[l] = (kvevict_observation){sizeof shown[l], l, &inputs[l]};
    }
    EXPECT_OK(
        kvevict_sequence_observe(m->sequence, shown, kLayers, n, first, NULL));
    test_model_append(m, n);
    test_model_append(other, n);
    if (test_random_below(&random, 4) == 0 && m->n_seen > tail + 1) {
      GoBack(m, other, test_random_between(&random, tail + 1, m->n_seen),
             ledgers);
    }
    if (test_random_below(&random, 9) == 0) {
      kvevict_sequence* const copy =
          test_copy(m->plan, m->sequence, TEST_COPY_FORK);
      kvevict_sequence_destroy(m->sequence);
      m->sequence = copy;
    }
    for (uint32_t l = 0; l < kLayers; ++l) {
      Give(&ledgers[l], other, l, values[l], &planes[l], &inputs[l]);
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = inputs;
    options.inputs_len = kLayers;
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EXPECT_OK(test_model_evict(m, NULL, &report));
    evicted = evicted || report.evicted != 0;
    if (report.evicted != 0) tail = m->n_seen;
    EXPECT_OK(test_model_evict(other, &options, NULL));
    test_expect_same_tokens(m, other, policy);
    for (uint32_t l = 0; l < kLayers; ++l) {
      ExpectSums(&ledgers[l], m, l, policy);
    }
  }
  EXPECT(evicted, "%s: nothing was evicted", policy);
  test_model_check(m, policy);
  test_model_destroy(m);
  test_model_destroy(other);
}

Test(sums, are_those_of_an_engine_that_keeps_them) {
  static const char* const kPolicies[] = {
      "h2o:budget=40,recent=8",
      "h2o:budget=40,recent=8,group=max,margin=9",
      "h2o:budget=40,recent=8,group=max,sums=query,pool=avg3",
      "h2o:budget=40,recent=8,sums=query,order=pool-reduce,pool=max3",
      "h2o:budget=40,recent=0,rows=mean,group=sum",
      "h2o:budget=30,recent=4,heads=adaptive,floor=0.3",
      "h2o:budget=30,recent=4,heads=adaptive,sums=query,rows=mean,every=4",
      "h2o:budget=30,recent=4,split=geometric,alpha=0.8",
      "h2o:budget=40,recent=8,scope=layer",
      "h2o:budget=40,recent=8,scope=layer,sums=layer,sum_pool=7,rows=mean",
      "h2o:budget=40,recent=8,scope=layer,sums=layer,weight=norm,over=sum",
      "h2o:budget=40,recent=8,scope=model,sums=layer,sum_pool=2",
      "h2o:budget=40,recent=8,scope=model,group=sum",
      "h2o:budget=48,recent=8,select_block=8,sum_pool=3",
      "h2o:budget=40,recent=8,sum_pool=1023,sink=2",
      "h2o:budget=40,recent=8,redundancy=0.5"};
  for (uint32_t p = 0; p < sizeof kPolicies / sizeof *kPolicies; ++p) {
    Run(kPolicies[p], 1 + p);
  }
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
