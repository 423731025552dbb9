/* A sequence and its copy live the same life. The copy is forked, loaded or started
 * from positions, under any plan. A naive model says what each holds. */
#include <stdlib.h>

#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/mixed.h"
#include "tests/capi/support/model.h"

enum { kLayers = 3, kHeads = 2, kMaxTokens = 100, kMaxPositions = 400 };

static const uint32_t kBudgets[kLayers * kHeads] = {20, 50, 41, 41, 9, 30};

typedef struct config {
  const char* policy;
  const uint32_t* head_budgets;
} config;

static const config kConfigs[] = {
    {"none", NULL},
    {"streaming-llm:budget=40,sink=4", NULL},
    {"streaming-llm:budget=40,sink=30", NULL},
    {"streaming-llm:budget=40,sink=4", kBudgets},
    {"snapkv:budget=40,window=8,scope=head", NULL},
    {"snapkv:budget=40,window=8,scope=layer,select_block=4", NULL},
    {"snapkv:budget=40,window=8,scope=model", NULL},
    {"snapkv:budget=30,window=4,scope=head", kBudgets},
    {"snapkv:budget=40,window=8,heads=adaptive", NULL},
    {"pyramidkv:budget=40,window=8,alpha=0.5", NULL},
    {"cake:budget=40,window=8", NULL},
    {"tova:budget=40,keep_window=no", NULL},
    {"knorm:sink=0,budget=40,scope=head", NULL},
    {"knorm:sink=0,budget=40,scope=head,merge=values", NULL},
};
enum { kConfigs_len = sizeof kConfigs / sizeof *kConfigs };

/* ---- The naive model ---- */

/* The positions that every head holds. */
typedef struct naive {
  uint8_t holds[kLayers][kHeads][kMaxPositions];
  uint32_t logical;
  uint32_t bound; /* trims are exact from here on */
  bool merged;
  bool has_other_rows; /* a started copy does not know these rows */
} naive;

static uint32_t NaiveStored(const naive* n, uint32_t l, uint32_t h) {
  uint32_t stored = 0;
  for (uint32_t p = 0; p < n->logical; ++p) stored += n->holds[l][h][p];
  return stored;
}

static uint32_t NaivePrefix(const naive* n) {
  if (n->merged) return 0;
  for (uint32_t p = 0; p < n->logical; ++p) {
    for (int i = 0; i < kLayers * kHeads; ++i) {
      if (!n->holds[i / kHeads][i % kHeads][p]) return p;
    }
  }
  return n->logical;
}

static void NaiveAppend(naive* n, uint32_t count) {
  for (int i = 0; i < kLayers * kHeads; ++i) {
    memset(n->holds[i / kHeads][i % kHeads] + n->logical, 1, count);
  }
  n->logical += count;
}

static bool NaiveTrimIsExact(const naive* n, uint32_t length) {
  return length <= n->logical &&
         (length >= n->bound || length <= NaivePrefix(n));
}

static void NaiveTrim(naive* n, uint32_t length) {
  if (length < n->bound) n->bound = 0, n->merged = false;
  if (length == 0) n->has_other_rows = false;
  for (int i = 0; i < kLayers * kHeads; ++i) {
    memset(n->holds[i / kHeads][i % kHeads] + length, 0,
           kMaxPositions - length);
  }
  n->logical = length;
}

/* The least length from which on all heads have everything, with a token before it. */
static uint32_t NaiveStartBound(const naive* n) {
  uint32_t bound = 0;
  for (int i = 0; i < kLayers * kHeads; ++i) {
    const uint8_t* holds = n->holds[i / kHeads][i % kHeads];
    uint32_t first = n->logical;
    while (first > 0 && holds[first - 1]) --first;
    uint32_t n_before = 0;
    for (uint32_t p = 0; p < first; ++p) n_before += holds[p];
    if (first > 0 && n_before == 0) ++first;
    if (first > bound) bound = first;
  }
  return bound;
}

/* An eviction drops tokens and adds none. Other tests check which. */
static void NaiveEvict(naive* n, const test_model* m) {
  bool lost = false;
  for (int i = 0; i < kLayers * kHeads; ++i) {
    uint8_t* holds = n->holds[i / kHeads][i % kHeads];
    uint8_t left[kMaxPositions] = {0};
    int32_t positions[kMaxTokens];
    test_model_positions(m, i / kHeads, i % kHeads, positions);
    const uint32_t stored = test_model_stored_of(m, i / kHeads, i % kHeads);
    for (uint32_t s = 0; s < stored; ++s) {
      EXPECT(holds[positions[s]], "a token came back");
      left[positions[s]] = 1;
    }
    lost = lost || stored < NaiveStored(n, i / kHeads, i % kHeads);
    memcpy(holds, left, sizeof left);
  }
  if (!lost) return;
  n->bound = n->logical;
  n->merged = n->merged || m->policy.merge != KVEVICT_MERGE_NONE;
  n->has_other_rows = n->has_other_rows || n->merged;
}

/* Every answer of the library. */
static void ExpectNaive(const test_model* m, const naive* n, const char* what) {
  uint32_t logical = 0;
  EXPECT_OK(kvevict_sequence_logical_length(m->sequence, &logical));
  EXPECT(logical == n->logical, "%s: %u seen, not %u", what, logical,
         n->logical);
  EXPECT(test_exact_prefix(m->sequence) == NaivePrefix(n),
         "%s: prefix %u, not %u", what, test_exact_prefix(m->sequence),
         NaivePrefix(n));
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      int32_t positions[kMaxTokens];
      test_model_positions(m, l, h, positions);
      uint32_t slot = 0;
      for (uint32_t p = 0; p < n->logical; ++p) {
        if (!n->holds[l][h][p]) continue;
        EXPECT(positions[slot] == (int32_t)p,
               "%s: layer %u, head %u, slot %u is token %d, not %u", what, l, h,
               slot, positions[slot], p);
        ++slot;
      }
      EXPECT(test_model_stored_of(m, l, h) == slot,
             "%s: layer %u, head %u holds %u, not %u", what, l, h,
             test_model_stored_of(m, l, h), slot);
    }
  }
  if (!n->has_other_rows) test_model_check(m, what);
}

/* ---- Two lives ---- */

typedef struct life {
  test_model* m;
  naive n;
} life;

static uint32_t RoomOf(const life* a) {
  uint32_t most = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t stored = test_model_stored(a->m, l);
    if (stored > most) most = stored;
  }
  const uint32_t left = kMaxPositions - a->n.logical;
  return kMaxTokens - most < left ? kMaxTokens - most : left;
}

static void ObserveWindow(test_model* m) {
  const uint32_t window = m->policy.window;
  if (window > 0 && m->n_seen >= window) {
    test_model_observe(m, m->n_seen - window, window);
  }
}

/* True if both accepted the trim. */
static bool Trim(life* a, uint32_t length) {
  const kvevict_status status =
      kvevict_sequence_trim_to(a->m->sequence, length, NULL);
  if (NaiveTrimIsExact(&a->n, length)) {
    EXPECT(status == KVEVICT_OK, "trim to %u of %u: %s", length, a->n.logical,
           kvevict_last_error_message());
    NaiveTrim(&a->n, length);
    a->m->n_seen = length;
    return true;
  }
  char below[40], above[40];
  snprintf(below, sizeof below, "up to %u and", NaivePrefix(&a->n));
  snprintf(above, sizeof above, "from %u on", a->n.bound);
  EXPECT_INVALID(status, below, above);
  return false;
}

static void Step(life* lives, int n_lives, test_random* random) {
  switch (test_random_below(random, 6)) {
    case 0: { /* Both or none: the bound of one that was started may be lower. */
      const uint32_t length =
          test_random_coin(random)
              ? test_random_between(random, 0, lives[0].n.logical)
              : lives[0].n.logical -
                    test_random_below(random, lives[0].n.logical < 6
                                                  ? lives[0].n.logical + 1
                                                  : 6);
      bool all = true;
      for (int i = 0; i < n_lives; ++i) {
        all = all && NaiveTrimIsExact(&lives[i].n, length);
      }
      for (int i = 0; i < n_lives; ++i) {
        if (!all && NaiveTrimIsExact(&lives[i].n, length)) continue;
        if (Trim(&lives[i], length)) ObserveWindow(lives[i].m);
      }
      break;
    }
    case 1:
    case 2: {
      char message[2][512] = {"", ""};
      for (int i = 0; i < n_lives; ++i) {
        if (test_model_evict(lives[i].m, NULL, NULL) == KVEVICT_OK) {
          NaiveEvict(&lives[i].n, lives[i].m);
        } else {
          snprintf(message[i], sizeof message[i], "%s",
                   kvevict_last_error_message());
        }
      }
      EXPECT(n_lives == 1 || strcmp(message[0], message[1]) == 0,
             "\"%s\" and \"%s\"", message[0], message[1]);
      break;
    }
    default: {
      const uint32_t n = test_random_below(random, RoomOf(&lives[0]) + 1);
      for (int i = 0; i < n_lives; ++i) {
        test_model_step(lives[i].m, n);
        NaiveAppend(&lives[i].n, n);
      }
    }
  }
}

static void ExpectAlike(const life* lives, const char* what) {
  for (int i = 0; i < 2; ++i) ExpectNaive(lives[i].m, &lives[i].n, what);
  test_expect_same_tokens(lives[0].m, lives[1].m, what);
  for (uint32_t l = 0; l < kLayers; ++l) {
    uint32_t ends[kHeads];
    for (uint32_t h = 0; h < kHeads; ++h) {
      ends[h] = test_model_stored_of(lives[0].m, l, h);
    }
    test_expect_same_rows_of_heads(lives[0].m->live[l], lives[1].m->live[l],
                                   ends, what);
  }
}

/* A copy of the model: a sequence made from its own, and an equal cache. */
static test_model CopyModel(const test_model* m, test_copy_by by) {
  test_model copy = *m;
  copy.sequence = test_copy(m->plan, m->sequence, by);
  for (uint32_t l = 0; l < kLayers; ++l) {
    copy.live[l] = test_cache_clone(m->live[l]);
    copy.views[l] = copy.live[l]->view;
  }
  return copy;
}

static void LiveTwice(const config* c, test_random* random) {
  test_model_spec spec = test_small_model(c->policy);
  spec.n_layers = kLayers;
  spec.n_kv_heads = kHeads;
  spec.max_tokens = kMaxTokens;
  spec.max_positions = kMaxPositions;
  spec.head_budgets = c->head_budgets;
  static life lives[2];
  memset(lives, 0, sizeof lives);
  lives[0].m = test_model_create(&spec, *random);
  const int n_before = (int)test_random_below(random, 12);
  for (int i = 0; i < n_before; ++i) {
    Step(lives, 1, random);
    ExpectNaive(lives[0].m, &lives[0].n, c->policy);
  }
  const test_copy_by by =
      (test_copy_by)test_random_below(random, TEST_N_COPIES);
  char what[300];
  snprintf(what, sizeof what, "%s, copy %d", c->policy, (int)by);
  test_model copy = CopyModel(lives[0].m, by);
  lives[1] = lives[0];
  lives[1].m = &copy;
  if (by == TEST_COPY_START) {
    lives[1].n.bound = NaiveStartBound(&lives[1].n);
    lives[1].n.merged = false;
  }
  if (by != TEST_COPY_FORK) {
    ObserveWindow(lives[0].m);
    ObserveWindow(lives[1].m);
  }
  if (by == TEST_COPY_LOAD) {
    const test_saved a = test_save(lives[0].m->sequence);
    const test_saved b = test_save(copy.sequence);
    EXPECT(a.n_bytes == b.n_bytes && memcmp(a.data, b.data, a.n_bytes) == 0,
           "%s: saved again it is not the same", what);
    free(a.data);
    free(b.data);
  }
  ExpectNaive(&copy, &lives[1].n, what);
  for (int i = 0; i < 15; ++i) {
    Step(lives, 2, random);
    ExpectAlike(lives, what);
  }
  kvevict_sequence_destroy(copy.sequence);
  for (uint32_t l = 0; l < kLayers; ++l) test_cache_destroy(copy.live[l]);
  test_model_destroy(lives[0].m);
}

Test(sequence_copies, live_as_what_they_were_made_from) {
  test_random random = test_random_start("sequence copies");
  for (int i = 0; i < 10 * kConfigs_len; ++i) {
    LiveTwice(&kConfigs[i % kConfigs_len], &random);
    test_random_u64(&random);
  }
}

/* ---- Layers that differ, and some without a cache ---- */

Test(sequence_copies, go_on_in_models_whose_layers_differ) {
  test_random random = test_random_start("mixed copies");
  for (int i = 0; i < 20; ++i) {
    const bool by_head = test_random_coin(&random);
    const char* policy = by_head ? "knorm:sink=0,budget=30,scope=head"
                                 : "knorm:sink=0,budget=30,scope=layer";
    test_mixed* m = test_mixed_draw(&random, false);
    test_mixed_open(m, policy, NULL, &random);
    test_mixed_step(m, test_random_between(&random, 1, TEST_MIXED_TOKENS));
    if (test_random_coin(&random))
      EXPECT_OK(test_mixed_evict(m, NULL, &random));
    /* The models of equal layers beside it go on without a copy. */
    for (uint32_t l = 0; l < m->n_layers; ++l) {
      if (m->alike[l] == NULL) continue;
      EXPECT_OK(test_model_evict(m->alike[l], NULL, NULL));
    }
    EXPECT_OK(test_mixed_evict(m, NULL, &random));
    const test_copy_by by =
        (test_copy_by)test_random_below(&random, TEST_N_COPIES);
    kvevict_sequence* copy = test_copy(m->plan, m->sequence, by);
    kvevict_sequence_destroy(m->sequence);
    m->sequence = copy;
    test_mixed_step(m, 40);
    EXPECT_OK(test_mixed_evict(m, NULL, &random));
    for (uint32_t l = 0; l < m->n_layers; ++l) {
      if (m->alike[l] == NULL) continue;
      EXPECT_OK(test_model_evict(m->alike[l], NULL, NULL));
      test_mixed_expect_alike(m, l, policy);
    }
    test_mixed_destroy(m);
  }
}
