/* Sequences whose heads hold different numbers of tokens, by a budget for every KV
 * head or by scores: evicted, grown and trimmed again and again in every layout. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/head_split.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

enum { kLayers = 3, kMaxHeads = 4, kMaxTokens = 160, kMaxPositions = 900 };

/* ---- The expected tokens ---- */

/* The positions that every head should hold. */
typedef struct account {
  uint32_t n[kLayers][kMaxHeads];
  int32_t positions[kLayers][kMaxHeads][kMaxTokens];
  uint32_t tail; /* the logical length at the last eviction */
} account;

static void Grow(account* a, uint32_t heads, uint32_t n_seen, uint32_t n) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t i = 0; i < n; ++i) {
        a->positions[l][h][a->n[l][h]++] = (int32_t)(n_seen + i);
      }
    }
  }
}

static void Shrink(account* a, uint32_t heads, uint32_t n) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < heads; ++h) a->n[l][h] -= n;
  }
}

static void ExpectHeld(const test_model* m, const account* a,
                       const char* what) {
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      int32_t positions[kMaxTokens];
      EXPECT(test_model_stored_of(m, l, h) == a->n[l][h],
             "%s: layer %u, head %u holds %u tokens, not %u", what, l, h,
             test_model_stored_of(m, l, h), a->n[l][h]);
      test_model_positions(m, l, h, positions);
      for (uint32_t i = 0; i < a->n[l][h]; ++i) {
        EXPECT(positions[i] == a->positions[l][h][i],
               "%s: layer %u, head %u, slot %u is token %d, not %d", what, l, h,
               i, positions[i], a->positions[l][h][i]);
      }
    }
  }
  test_model_check(m, what);
}

/* The device reads the length of every list, the listed positions and their counts. */
static void ExpectMemory(const test_model* m, const account* a,
                         const char* what) {
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    kvevict_sequence_memory memory = {.struct_size = sizeof memory};
    EXPECT_OK(kvevict_sequence_memory_of(m->sequence, l, &memory));
    EXPECT(memory.n_lists == m->spec.n_kv_heads, "%s: %u lists", what,
           memory.n_lists);
    const uint32_t* lengths = (const uint32_t*)(uintptr_t)memory.lengths;
    const uint32_t* counts = (const uint32_t*)(uintptr_t)memory.listed_counts;
    const int32_t* listed = (const int32_t*)(uintptr_t)memory.positions;
    for (uint32_t h = 0; h < memory.n_lists; ++h) {
      const uint32_t* of_list = lengths + 2 * h;
      EXPECT(of_list[0] == a->n[l][h] && of_list[1] == m->n_seen,
             "%s: layer %u, head %u: lengths %u, %u", what, l, h, of_list[0],
             of_list[1]);
      const uint32_t n = counts == NULL ? memory.n_listed : counts[h];
      EXPECT(n <= memory.n_listed && n <= a->n[l][h],
             "%s: layer %u, head %u lists %u of %u", what, l, h, n,
             memory.n_listed);
      for (uint32_t i = 0; i < n; ++i) {
        EXPECT(listed[(size_t)h * memory.n_listed + i] == a->positions[l][h][i],
               "%s: layer %u, head %u: listed %u", what, l, h, i);
      }
      /* Positions after the list count up to the logical length. */
      EXPECT(n == a->n[l][h] ||
                 (uint32_t)a->positions[l][h][n] == m->n_seen - a->n[l][h] + n,
             "%s: layer %u, head %u: the tail", what, l, h);
    }
  }
}

/* ---- Block tables: entries of blocks that are free hold -1 ---- */

typedef struct tables {
  int32_t* full[kLayers];
} tables;

static tables SaveTables(const test_model* m) {
  tables t = {{NULL}};
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    /* A ring uses all its blocks. */
    if (m->live[l]->block_table == NULL || m->live[l]->view.ring_slots != 0) {
      continue;
    }
    const size_t bytes = m->live[l]->view.block_table_len * sizeof(int32_t);
    t.full[l] = malloc(bytes);
    memcpy(t.full[l], m->live[l]->block_table, bytes);
  }
  return t;
}

static void FreeTables(tables* t) {
  for (int l = 0; l < kLayers; ++l) free(t->full[l]);
}

/* Keeps only the blocks that n_more tokens in every head need. Returns how many
 * entries lost theirs over all layers and tables. */
static uint64_t SetBlocks(test_model* m, const tables* t, uint32_t n_more) {
  uint64_t n_free = 0;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    test_cache* c = m->live[l];
    if (c->view.block_size == 0 || c->view.ring_slots != 0) continue;
    const uint64_t stride = c->view.block_table_head_stride;
    const uint32_t n_tables = stride == 0 ? 1 : m->spec.n_kv_heads;
    const uint32_t all = test_cache_blocks(c, m->spec.max_tokens);
    for (uint32_t h = 0; h < n_tables; ++h) {
      const uint32_t held =
          stride == 0 ? test_model_stored(m, l) : test_model_stored_of(m, l, h);
      uint32_t n = held + n_more;
      if (n > m->spec.max_tokens) n = m->spec.max_tokens;
      const uint32_t used = test_cache_blocks(c, n);
      for (uint32_t i = 0; i < all && t->full[l] != NULL; ++i) {
        const size_t at = h * stride + i;
        c->block_table[at] = i < used ? t->full[l][at] : -1;
      }
      n_free += all - used;
    }
  }
  return n_free;
}

/* ---- An eviction against the oracle ---- */

/* The content of a head before an eviction. */
typedef struct head_before {
  uint32_t n;
  uint8_t forced[kMaxTokens];
  double scores[kMaxTokens];
  double largest;
} head_before;

static uint32_t Min(uint32_t a, uint32_t b) { return a < b ? a : b; }

static float given_scores[kLayers][kMaxHeads][kMaxTokens];

static void DrawScores(test_random* random) {
  float* scores = &given_scores[0][0][0];
  for (size_t i = 0; i < sizeof given_scores / sizeof *scores; ++i) {
    scores[i] = (float)((int)test_random_below(random, 60) - 30) / 4.0f;
    if (test_random_below(random, 40) == 0) scores[i] = NAN;
  }
}

/* Checks how the kept slots of a head were chosen. */
static void ExpectChosen(const test_model* m, const head_before* before,
                         uint32_t n_keep, const int32_t* kept, bool exact,
                         const char* what) {
  if (!exact) {
    EXPECT(oracle_selection_is_right(before->scores, before->n, kept, n_keep,
                                     before->forced, 1e-3 * before->largest),
           "%s: not the best %u of %u", what, n_keep, before->n);
    return;
  }
  float scores[kMaxTokens];
  int32_t expected[kMaxTokens];
  for (uint32_t i = 0; i < before->n; ++i) scores[i] = (float)before->scores[i];
  const kvevict_tie tie = m->policy.kind == ORACLE_STREAMING_LLM
                              ? KVEVICT_TIE_HIGHER_POSITION
                              : m->policy.tie;
  oracle_select(scores, before->n, n_keep, before->forced, tie, expected);
  EXPECT(memcmp(kept, expected, n_keep * sizeof *kept) == 0,
         "%s: other slots than the oracle's", what);
}

/* How many tokens a layer's heads keep by the given scores. */
static void CountByScores(const test_model* m, const head_before* before,
                          uint32_t budget, uint32_t n_asked, uint32_t* counts) {
  const oracle_policy* p = &m->policy;
  const uint32_t n = m->spec.n_kv_heads;
  oracle_head heads[kMaxHeads];
  float scores[kMaxHeads][kMaxTokens];
  uint64_t n_held = 0;
  for (uint32_t h = 0; h < n; ++h) {
    for (uint32_t i = 0; i < before[h].n; ++i) {
      scores[h][i] = (float)before[h].scores[i];
    }
    heads[h] = (oracle_head){scores[h], before[h].forced, before[h].n};
    n_held += before[h].n;
    counts[h] = UINT32_MAX;
  }
  if (n_held <= (uint64_t)budget * n && p->heads != ORACLE_HEADS_THRESHOLD) {
    return;
  }
  oracle_head_counts(p, heads, n, budget, n_asked, counts);
}

/* Evicts and updates `a`. Returns how many tokens went. NULL `budgets` mean that
 * scores decide. */
static uint64_t Evict(test_model* m, const uint32_t* budgets, account* a,
                      const kvevict_evict_options* options, const tables* t,
                      const char* what) {
  const uint32_t heads = m->spec.n_kv_heads;
  uint32_t counts[kLayers * kMaxHeads], of_layers[kLayers];
  static head_before before[kLayers][kMaxHeads];
  static account was;
  was = *a;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < heads; ++h) {
      head_before* b = &before[l][h];
      b->n = a->n[l][h];
      b->largest = 0.0;
      test_model_forced(m, l, h, options, b->forced);
      memset(b->scores, 0, sizeof b->scores);
      if (m->policy.kind == ORACLE_SNAPKV && m->n_seen >= m->policy.window) {
        test_model_oracle_scores_of(m, l, h, b->scores);
      } else if (m->policy.kind == ORACLE_CUSTOM) {
        for (uint32_t i = 0; i < b->n; ++i) {
          b->scores[i] = given_scores[l][h][i];
        }
      }
      for (uint32_t i = 0; i < b->n; ++i) {
        if (isfinite(b->scores[i])) {
          b->largest = fmax(b->largest, fabs(b->scores[i]));
        }
      }
    }
  }
  if (budgets == NULL) {
    const uint32_t n_context = test_model_context(m);
    EXPECT_OK(kvevict_policy_layer_budgets(
        m->policy_handle, n_context + (n_context == 0), of_layers, kLayers));
    for (uint32_t l = 0; l < kLayers; ++l) {
      CountByScores(m, before[l], of_layers[l], test_model_asked(m, options),
                    counts + l * heads);
    }
    budgets = counts;
  }
  test_cache* caches[kLayers];
  for (uint32_t l = 0; l < kLayers; ++l) {
    caches[l] = test_cache_clone(m->live[l]);
  }
  const uint64_t free_before = SetBlocks(m, t, 0);
  EXPECT_OK(test_model_evict(m, options, NULL));
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  kvevict_list_report lists[kLayers * kMaxHeads];
  for (uint32_t i = 0; i < kLayers * heads; ++i) {
    lists[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  EXPECT_OK(
      kvevict_sequence_report(m->sequence, &report, lists, kLayers * heads));
  const uint64_t free_after = SetBlocks(m, t, 0);

  uint64_t n_lost = 0, sum_before = 0, sum_after = 0;
  uint64_t bytes_before = 0, bytes_after = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    const test_cache* c = m->live[l];
    const uint64_t row = test_model_row_bytes(m, l);
    uint64_t most_before = 0, most_after = 0;
    for (uint32_t h = 0; h < heads; ++h) {
      const head_before* b = &before[l][h];
      const uint32_t budget = budgets[l * heads + h];
      const uint32_t want = Min(budget == 0 ? 1 : budget, b->n);
      int32_t kept[kMaxTokens];
      EXPECT(test_model_stored_of(m, l, h) == want,
             "%s: layer %u, head %u holds %u tokens, not %u", what, l, h,
             test_model_stored_of(m, l, h), want);
      test_model_positions(m, l, h, a->positions[l][h]);
      a->n[l][h] = want;
      test_model_kept_slots(m, l, h, was.positions[l][h], b->n, kept);
      if (m->policy.kind != ORACLE_RANDOM && want < b->n) {
        ExpectChosen(m, b, want, kept, m->policy.kind != ORACLE_SNAPKV, what);
      }
      for (uint32_t i = 0, k = 0; i < b->n && want < b->n; ++i) {
        while (k < want && kept[k] < (int32_t)i) ++k;
        EXPECT(!b->forced[i] || m->policy.kind == ORACLE_STREAMING_LLM ||
                   (k < want && kept[k] == (int32_t)i),
               "%s: layer %u, head %u lost slot %u, which must stay", what, l,
               h, i);
      }
      const kvevict_list_report* list = &lists[l * heads + h];
      EXPECT(list->layer == l && list->tokens_before == b->n &&
                 list->tokens_after == want,
             "%s: layer %u, head %u: report of layer %u, %u to %u", what, l, h,
             list->layer, list->tokens_before, list->tokens_after);
      n_lost += b->n - want;
      bytes_before += row * b->n;
      bytes_after += row * want;
      if (b->n > most_before) most_before = b->n;
      if (want > most_after) most_after = want;
    }
    sum_before += most_before;
    sum_after += most_after;
    /* No byte changed outside of rows that the heads held. */
    test_expect_same_outside_heads(c, caches[l], was.n[l], what);
    test_cache_destroy(caches[l]);
  }
  EXPECT(report.evicted == (n_lost > 0), "%s: evicted %u of %llu", what,
         report.evicted, (unsigned long long)n_lost);
  EXPECT(report.tokens_before == sum_before && report.tokens_after == sum_after,
         "%s: tokens %llu to %llu", what,
         (unsigned long long)report.tokens_before,
         (unsigned long long)report.tokens_after);
  EXPECT(
      report.bytes_before == bytes_before && report.bytes_after == bytes_after,
      "%s: bytes %llu to %llu, not %llu to %llu", what,
      (unsigned long long)report.bytes_before,
      (unsigned long long)report.bytes_after, (unsigned long long)bytes_before,
      (unsigned long long)bytes_after);
  EXPECT(report.blocks_freed == free_after - free_before,
         "%s: %llu blocks freed, not %llu", what,
         (unsigned long long)report.blocks_freed,
         (unsigned long long)(free_after - free_before));
  if (n_lost > 0) a->tail = m->n_seen;
  ExpectHeld(m, a, what);
  ExpectMemory(m, a, what);
  return n_lost;
}

/* ---- Lives of random sequences ---- */

static void Step(test_model* m, account* a, const tables* t, uint32_t n) {
  SetBlocks(m, t, n);
  test_model_observe(m, m->n_seen, n);
  Grow(a, m->spec.n_kv_heads, m->n_seen, n);
  test_model_append(m, n);
}

static uint32_t Longest(const test_model* m) {
  uint32_t most = 0;
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t n = test_model_stored(m, l);
    if (n > most) most = n;
  }
  return most;
}

/* Draws budgets for all heads: from `least` on, sometimes above what is ever held,
 * or all alike. */
static void RandomBudgets(test_random* random, uint32_t least,
                          uint32_t* budgets, uint32_t n) {
  const uint32_t kind = test_random_below(random, 5);
  const uint32_t one = least + test_random_below(random, 60);
  for (uint32_t i = 0; i < n; ++i) {
    budgets[i] = kind == 0   ? one
                 : kind == 1 ? least + test_random_below(random, 3)
                             : least + test_random_below(random, 120);
    if (test_random_below(random, 8) == 0) budgets[i] = least;
    if (test_random_below(random, 8) == 0) budgets[i] = 4000000000u;
  }
}

typedef struct ragged_kind {
  const char* policy;
  uint32_t least; /* least budget: what must stay and is protected */
  uint32_t n_protect;
  bool by_scores; /* scores decide, not a budget per head */
} ragged_kind;

static void Live(test_random* random, const ragged_kind* kind, int round) {
  static uint32_t of_heads[kLayers * kMaxHeads];
  const uint32_t* budgets = kind->by_scores ? NULL : of_heads;
  test_model_spec spec = {.policy = kind->policy};
  spec.n_layers = kLayers;
  spec.n_kv_heads = test_random_between(random, 1, kMaxHeads);
  spec.n_q_heads = spec.n_kv_heads * test_random_between(random, 1, 3);
  spec.max_tokens = kMaxTokens;
  spec.max_positions = kMaxPositions;
  spec.k_head_dim = test_random_between(random, 1, 20);
  spec.v_head_dim = test_random_below(random, 9);
  spec.q_dtype = KVEVICT_DTYPE_F32;
  spec.k_dtype = KVEVICT_DTYPE_F32;
  spec.layout = (test_layout)(round % TEST_N_LAYOUTS);
  spec.n_companions = test_random_below(random, 3);
  spec.n_threads = test_random_between(random, 1, 4);
  spec.head_budgets = budgets;
  RandomBudgets(random, kind->least, of_heads, kLayers * spec.n_kv_heads);
  test_model* m = test_model_create(&spec, *random);
  test_random_u64(random);
  tables t = SaveTables(m);
  static account a;
  memset(&a, 0, sizeof a);
  char what[160];
  for (int i = 0; i < 5; ++i) {
    snprintf(what, sizeof what, "%s, %s, %u heads, eviction %d", kind->policy,
             test_layout_name(spec.layout), spec.n_kv_heads, i);
    const uint32_t room = kMaxTokens - Longest(m);
    if (room > 0) {
      uint32_t n = test_random_between(random, 1, room);
      if (n < 10 && room >= 10) n = 10;
      Step(m, &a, &t, n);
    }
    ExpectHeld(m, &a, what);
    ExpectMemory(m, &a, what);
    if (m->n_seen > a.tail && test_random_coin(random)) {
      const uint32_t n = test_random_between(random, 0, m->n_seen - a.tail);
      EXPECT_OK(kvevict_sequence_trim_to(m->sequence, m->n_seen - n, NULL));
      m->n_seen -= n;
      Shrink(&a, spec.n_kv_heads, n);
      if (m->policy.kind == ORACLE_SNAPKV) {
        /* Queries that others pushed out of the window are needed again. */
        const uint32_t window = Min(m->policy.window, m->n_seen);
        test_model_observe(m, m->n_seen - window, window);
      }
      SetBlocks(m, &t, 0);
      ExpectHeld(m, &a, what);
      ExpectMemory(m, &a, what);
    }
    int32_t protect[4];
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.protected_positions_len = Min(kind->n_protect, m->n_seen);
    options.protected_positions =
        options.protected_positions_len > 0 ? protect : NULL;
    test_random_ascending(random, protect,
                          (uint32_t)options.protected_positions_len, m->n_seen);
    test_inputs inputs;
    if (m->policy.kind == ORACLE_CUSTOM) {
      DrawScores(random);
      test_give_scores(&options, &inputs, kLayers, given_scores[0][0],
                       kMaxHeads * kMaxTokens, kMaxTokens);
    }
    Evict(m, budgets, &a, &options, &t, what);
    const account same = a;
    /* A second eviction finds nothing to do. */
    if (m->policy.kind != ORACLE_CUSTOM) {
      EXPECT(Evict(m, budgets, &a, &options, &t, what) == 0, "%s: again", what);
      EXPECT(memcmp(same.n, a.n, sizeof same.n) == 0, "%s: again", what);
    }
  }
  FreeTables(&t);
  test_model_destroy(m);
}

static void LiveAll(const char* name, const ragged_kind* kinds, int n) {
  test_random random = test_random_start(name);
  for (int round = 0; round < 5 * TEST_N_LAYOUTS; ++round) {
    for (int k = 0; k < n; ++k) Live(&random, &kinds[k], round);
  }
}

Test(ragged, random_survivors_in_every_layout) {
  static const ragged_kind kKinds[] = {
      {"random:budget=0.5,sink=0,recent=0", 0, 0, false},
      {"random:budget=60,sink=2,recent=3", 9, 4, false}};
  LiveAll("ragged random", kKinds, 2);
}

Test(ragged, streaming_llm_keeps_sinks_and_the_last) {
  static const ragged_kind kKinds[] = {
      {"streaming-llm:budget=60", 5, 0, false},
      {"streaming-llm:budget=60,sink=0", 5, 4, false}};
  LiveAll("ragged streaming", kKinds, 2);
}

Test(ragged, custom_scores_select_as_the_oracle) {
  static const ragged_kind kKinds[] = {
      {"custom:budget=60,sink=0,recent=0", 0, 0, false},
      {"custom:budget=60,sink=1,recent=2,tie=higher", 7, 4, false}};
  LiveAll("ragged custom", kKinds, 2);
}

Test(ragged, window_attention_selects_as_the_oracle) {
  static const ragged_kind kKinds[] = {
      {"snapkv:budget=60,sink=2,window=8", 10, 0, false},
      {"snapkv:budget=60,sink=0,window=4,pool=max3,tie=higher", 8, 4, false},
      {"snapkv:budget=50,sink=0,window=4,prior=mean", 8, 4, false}};
  LiveAll("ragged attention", kKinds, 3);
}

Test(ragged, heads_share_a_budget_as_the_oracle) {
  static const ragged_kind kKinds[] = {
      {"custom:budget=40,sink=1,recent=2,heads=adaptive", 0, 4, true},
      {"custom:sink=0,budget=25,heads=adaptive,floor=0,tie=higher", 0, 0, true},
      {"custom:sink=0,budget=0.3,heads=adaptive,floor=1,split=geometric", 0, 0,
       true},
      {"custom:sink=0,budget=1.5,heads=adaptive,floor=0.9", 0, 0, true},
      {"custom:budget=30,sink=8,recent=16,heads=adaptive", 0, 4, true},
      {"custom:sink=0,budget=30,heads=adaptive,split=arithmetic-kvf", 0, 0,
       true}};
  LiveAll("adaptive heads", kKinds, 6);
}

Test(ragged, heads_blend_a_budget_as_the_oracle) {
  static const ragged_kind kKinds[] = {
      {"custom:budget=30,sink=2,recent=3,heads=adaptive-blend", 0, 4, true},
      {"custom:sink=0,budget=17,heads=adaptive-blend,floor=0.5", 0, 0, true},
      {"custom:sink=0,budget=1.5,heads=adaptive-blend,floor=0", 0, 0, true}};
  LiveAll("blended heads", kKinds, 3);
}

Test(ragged, heads_keep_what_reaches_a_threshold) {
  static const ragged_kind kKinds[] = {
      {"custom:budget=40,sink=1,recent=6,heads=threshold,threshold=1", 0, 4,
       true},
      {"custom:sink=0,recent=3,heads=threshold,threshold=-7", 0, 0, true},
      {"custom:sink=0,budget=1.5,heads=threshold,threshold=99", 0, 0, true}};
  LiveAll("heads by threshold", kKinds, 3);
}
