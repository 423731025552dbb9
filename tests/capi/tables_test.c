/* Evictions by table beside the same evictions that move rows. Both models hold the
 * same rows after each, and the first one's pool has not changed by a byte. */
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"

enum { kMaxTokens = 2600, kMaxEntries = 2 * (kMaxTokens + 64) };

/* ---- Tables before and after ---- */

/* Entry i of a table, as a number. */
static uint64_t EntryOf(const kvevict_view* view, const kvevict_plane* plane,
                        uint64_t i) {
  if (view->block_table != NULL) return (uint64_t)view->block_table[i];
  return ((const uint64_t*)(uintptr_t)plane->address_table)[i];
}

static int Compare(const void* a, const void* b) {
  const uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}

/* The table only says which blocks go, not in which order. */
static void ExpectPermuted(const test_cache* cache, const uint64_t* before,
                           const kvevict_plane* plane, const test_model* m,
                           uint32_t l, uint32_t head, const int32_t* held,
                           uint32_t n_held, const char* what) {
  const kvevict_view* view = &cache->view;
  const uint32_t size = view->block_size;
  const uint64_t first = head * view->block_table_head_stride;
  const uint32_t n = (n_held + size - 1) / size;
  const uint32_t stored = test_model_stored_of(m, l, head);
  static int32_t positions[kMaxTokens];
  static uint8_t stays[kMaxTokens];
  static uint64_t went[kMaxTokens], behind[kMaxTokens];
  memset(stays, 0, sizeof stays);
  test_model_positions(m, l, head, positions);
  uint32_t n_stay = 0, slot = 0;
  for (uint32_t i = 0; i < stored; i += size) {
    while (held[slot] != positions[i]) ++slot;
    EXPECT(slot % size == 0, "%s: slot %u is not at the head of a block", what,
           slot);
    stays[slot / size] = 1;
    EXPECT(EntryOf(view, plane, first + n_stay) == before[first + slot / size],
           "%s: layer %u, head %u: entry %u is not that of block %u", what, l,
           head, n_stay, slot / size);
    ++n_stay;
  }
  uint32_t n_go = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!stays[i]) went[n_go++] = before[first + i];
  }
  EXPECT(n_go == n - n_stay, "%s: %u blocks go, of %u %u stay", what, n_go, n,
         n_stay);
  for (uint32_t i = 0; i < n_go; ++i) {
    behind[i] = EntryOf(view, plane, first + n_stay + i);
  }
  qsort(went, n_go, sizeof *went, Compare);
  qsort(behind, n_go, sizeof *behind, Compare);
  EXPECT(memcmp(went, behind, n_go * sizeof *went) == 0,
         "%s: layer %u, head %u: other blocks are behind those that stay", what,
         l, head);
}

static uint64_t EntriesOf(const kvevict_view* view,
                          const kvevict_plane* plane) {
  return view->block_table != NULL ? view->block_table_len
                                   : plane->address_table_len;
}

/* Evicts by table and checks everything. */
static void EvictByTable(test_model* m, kvevict_evict_options* options,
                         bool writes_rows, kvevict_evict_report* report,
                         const char* what) {
  const uint32_t n_layers = m->spec.n_layers, n_heads = m->spec.n_kv_heads;
  enum { kHeads = 4 };
  static int32_t held[TEST_MAX_LAYERS][kHeads][kMaxTokens];
  static uint64_t before[TEST_MAX_LAYERS][TEST_MAX_PLANES][kMaxEntries];
  uint32_t n_held[TEST_MAX_LAYERS][kHeads];
  test_cache* pools[TEST_MAX_LAYERS];
  for (uint32_t l = 0; l < n_layers; ++l) {
    pools[l] = test_cache_clone(m->live[l]);
    for (uint32_t head = 0; head < n_heads; ++head) {
      n_held[l][head] = test_model_stored_of(m, l, head);
      test_model_positions(m, l, head, held[l][head]);
    }
    for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
      const kvevict_plane* plane = test_cache_plane(m->live[l], p);
      if (plane == NULL) continue;
      const uint64_t n = EntriesOf(&m->live[l]->view, plane);
      EXPECT(n <= kMaxEntries, "%s: room for the tables", what);
      for (uint64_t i = 0; i < n; ++i) {
        before[l][p][i] = EntryOf(&m->live[l]->view, plane, i);
      }
    }
  }
  options->by_table = 1;
  EXPECT_OK(test_model_evict(m, options, report));
  options->by_table = 0;
  for (uint32_t l = 0; l < n_layers; ++l) {
    const kvevict_view* view = &m->live[l]->view;
    EXPECT(writes_rows || memcmp(m->live[l]->memory, pools[l]->memory,
                                 pools[l]->n_bytes) == 0,
           "%s: layer %u: bytes of the pool have changed", what, l);
    const uint32_t n_tables = view->block_table_head_stride == 0 ? 1 : n_heads;
    for (uint32_t p = 0; p < TEST_MAX_PLANES; ++p) {
      const kvevict_plane* plane = test_cache_plane(m->live[l], p);
      if (plane == NULL) continue;
      uint64_t end = 0; /* no entry in use lies beyond */
      for (uint32_t t = 0; t < n_tables; ++t) {
        ExpectPermuted(m->live[l], before[l][p], plane, m, l, t, held[l][t],
                       n_held[l][t], what);
        end = t * view->block_table_head_stride +
              (n_held[l][t] + view->block_size - 1) / view->block_size;
        const uint64_t next = t + 1 < n_tables
                                  ? (t + 1) * view->block_table_head_stride
                                  : EntriesOf(view, plane);
        for (uint64_t i = end; i < next; ++i) {
          EXPECT(EntryOf(view, plane, i) == before[l][p][i],
                 "%s: entry %llu, which is not in use, has changed", what,
                 (unsigned long long)i);
        }
      }
    }
    test_cache_destroy(pools[l]);
  }
}

/* ---- Lives ---- */

typedef enum scores { BY_ITSELF, BY_SUMS } scores;

typedef struct life {
  const char* policy;
  test_layout layout;
  uint32_t max_tokens, most_at_once;
  const uint32_t* head_budgets;
  scores scores;
  bool rewrites; /* rows that stay */
} life;

static const uint32_t kBudgets[4] = {40, 26, 72, 9};

#define OPENVINO                                                     \
  "h2o:budget=63,sink=16,recent=16,pool=none,rows=mean,scope=layer," \
  "tie=higher,select_block=16,prompt=at-end,sums=layer,sum_pool=7"

static const life kLives[] = {
    {"streaming-llm:sink=3,recent=41,select_block=16", TEST_PAGED_16, 100, 60,
     NULL, BY_ITSELF, false},
    {"streaming-llm:sink=5,recent=44,select_block=3", TEST_PAGED_3, 100, 9,
     NULL, BY_ITSELF, false},
    {"streaming-llm:budget=44,sink=3", TEST_PAGED_1, 100, 3, NULL, BY_ITSELF,
     false},
    {"knorm:budget=63,sink=0,select_block=16,scope=layer",
     TEST_PAGED_16_BY_HEAD, 100, 30, NULL, BY_ITSELF, false},
    {"knorm:budget=63,sink=2,select_block=32,scope=model,over=max",
     TEST_VECTORISED, 100, 30, NULL, BY_ITSELF, false},
    {"knorm:budget=50,sink=1,scope=layer", TEST_PAGED_1, 100, 30, NULL,
     BY_ITSELF, false},
    {"knorm:budget=50,sink=1,select_block=6", TEST_PAGED_3_OF_HEADS, 100, 40,
     NULL, BY_ITSELF, false},
    {"knorm:budget=60,sink=1,select_block=16", TEST_PAGED_16_OF_HEADS, 100, 50,
     NULL, BY_ITSELF, false},
    {"knorm:budget=60,sink=1,select_block=16,scope=layer",
     TEST_PAGED_16_OF_HEADS, 100, 50, NULL, BY_ITSELF, false},
    {"knorm:budget=40,sink=0,select_block=9", TEST_PAGED_3_OF_HEADS, 100, 40,
     kBudgets, BY_ITSELF, false},
    {"knorm:budget=40,sink=0,select_block=3", TEST_PAGES_3_OF_HEADS, 100, 40,
     kBudgets, BY_ITSELF, false},
    {"snapkv:budget=60,window=8,select_block=16,scope=layer,over=sum",
     TEST_PAGES_16, 100, 40, NULL, BY_ITSELF, false},
    {"snapkv:budget=0.5,window=8,select_block=3,scope=layer",
     TEST_PAGES_3_IN_ORDER, 100, 50, NULL, BY_ITSELF, false},
    {"chunkkv-kvpress:window=8,select_block=16", TEST_PAGED_16, 100, 50, NULL,
     BY_ITSELF, false},
    {OPENVINO, TEST_PAGED_16, 100, 20, NULL, BY_SUMS, false},
    {OPENVINO ",rescue=1,margin=5", TEST_PAGED_16_BY_HEAD, 100, 20, NULL,
     BY_SUMS, false},
    {"knorm:budget=63,sink=0,select_block=16,scope=layer,merge=pivot",
     TEST_PAGED_16, 100, 30, NULL, BY_ITSELF, true},
    {"snapkv:budget=60,window=8,select_block=16,scope=layer,fit=values",
     TEST_PAGED_16, 100, 40, NULL, BY_ITSELF, true},
    {"knorm:budget=1000,sink=3,scope=layer", TEST_PAGED_1, 2600, 2600, NULL,
     BY_ITSELF, false},
    {"knorm:budget=1900,sink=3,scope=layer,tie=higher", TEST_PAGED_1, 2600, 700,
     NULL, BY_ITSELF, false},
    {"streaming-llm:budget=1300,sink=700,select_block=2", TEST_PAGED_1, 2600,
     1400, NULL, BY_ITSELF, false},
};

/* Sums of a layer in one row, equal in all layers. */
static void GiveSums(test_random* random, uint32_t n, test_inputs* inputs,
                     kvevict_evict_options* options) {
  static float sums[kMaxTokens];
  for (uint32_t i = 0; i < n; ++i) {
    sums[i] = (float)test_random_below(random, 1000);
  }
  for (uint32_t l = 0; l < 2; ++l) {
    inputs->planes[l] = test_floats_plane(sums, kMaxTokens);
    inputs->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    inputs->inputs[l].attention_sums = &inputs->planes[l];
    inputs->inputs[l].n_sum_heads = 1;
  }
  options->inputs = inputs->inputs;
  options->inputs_len = 2;
}

static void Live(const life* of, test_random* random) {
  test_model_spec spec = test_small_model(of->policy);
  spec.max_tokens = of->max_tokens;
  spec.max_positions = 4 * of->max_tokens;
  spec.n_companions = of->max_tokens > 100 ? 0 : 2;
  spec.head_budgets = of->head_budgets;
  if (of->max_tokens > 100) spec.k_head_dim = spec.v_head_dim = 4;
  const test_random seed = {test_random_u64(random)};
  spec.layout = TEST_TOKEN_MAJOR;
  test_model* moves = test_model_create(&spec, seed);
  spec.layout = of->layout;
  spec.n_threads = 1 + test_random_below(random, 2);
  test_model* m = test_model_create(&spec, seed);
  uint64_t n_evictions = 0;
  for (int round = 0; round < 60 && n_evictions < 9; ++round) {
    uint32_t room = spec.max_tokens;
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      const uint32_t left = spec.max_tokens - test_model_stored(m, l);
      if (left < room) room = left;
    }
    if (room > of->most_at_once) room = of->most_at_once;
    const uint32_t n = round == 0 ? room : test_random_between(random, 1, room);
    if (m->n_seen + n > spec.max_positions) break;
    if (round == 5 && m->policy.prompt == ORACLE_PROMPT_AT_END) {
      EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
      EXPECT_OK(kvevict_sequence_end_prompt(moves->sequence));
    }
    test_model_step(m, n);
    test_model_step(moves, n);
    const int32_t protect = (int32_t)test_random_below(random, m->n_seen);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.protected_positions = &protect;
    options.protected_positions_len =
        of->head_budgets == NULL && test_random_below(random, 4) == 0;
    test_inputs inputs;
    if (of->scores == BY_SUMS) {
      GiveSums(random, test_model_stored(m, 0), &inputs, &options);
    }
    kvevict_evict_report moved = KVEVICT_EVICT_REPORT_INIT, by_table = moved;
    if (test_model_evict(moves, &options, &moved) != KVEVICT_OK) {
      options.protected_positions_len = 0;
      EXPECT_OK(test_model_evict(moves, &options, &moved));
    }
    EvictByTable(m, &options, of->rewrites, &by_table, of->policy);
    n_evictions += by_table.evicted;
    EXPECT(by_table.bytes_before == moved.bytes_before &&
               by_table.bytes_after == moved.bytes_after &&
               by_table.tokens_after == moved.tokens_after,
           "%s: another report", of->policy);
    test_expect_same_tokens(m, moves, of->policy);
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      uint32_t ends[4];
      for (uint32_t h = 0; h < spec.n_kv_heads; ++h) {
        ends[h] = test_model_stored_of(m, l, h);
      }
      test_expect_same_rows_of_heads(m->live[l], moves->live[l], ends,
                                     of->policy);
    }
    if (!of->rewrites) test_model_check(m, of->policy);
  }
  EXPECT(n_evictions > 2 || of->most_at_once == 2600, "%s: %llu evictions",
         of->policy, (unsigned long long)n_evictions);
  test_model_destroy(m);
  test_model_destroy(moves);
}

Test(sequence_tables, hold_the_rows_that_moving_would_leave) {
  test_random random = test_random_start("sequence_tables lives");
  for (size_t i = 0; i < sizeof kLives / sizeof *kLives; ++i) {
    const int n = kLives[i].max_tokens > 100 ? 1 : 4;
    for (int seed = 0; seed < n; ++seed) Live(&kLives[i], &random);
  }
}

/* ---- What goes together ---- */

/* All layers may use one table, as in engines whose layers share block ids. */
Test(sequence_tables, of_all_layers_may_be_one) {
  static const char* const kAlike[] = {
      "streaming-llm:sink=3,recent=41,select_block=16",
      "knorm:budget=63,sink=0,select_block=32,scope=model", "none"};
  for (int i = 0; i < 3; ++i) {
    test_model_spec spec = test_small_model(kAlike[i]);
    spec.layout = TEST_PAGED_16;
    test_model* m = test_model_create(&spec, (test_random){5});
    m->live[1]->view.block_table = m->live[0]->view.block_table;
    m->views[1] = m->live[1]->view;
    for (int round = 0; round < 3; ++round) {
      test_model_append(m, i == 2 ? 30 : round == 0 ? 90 : 33);
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
      EvictByTable(m, &options, false, &report, kAlike[i]);
      cr_expect_eq(report.evicted, i < 2);
      test_model_check(m, kAlike[i]);
    }
    test_model_destroy(m);
  }
}

Test(sequence_tables, come_with_undo) {
  static const life kUndone[] = {
      {"knorm:budget=63,sink=0,select_block=16,scope=layer", TEST_PAGED_16, 0,
       0, NULL, BY_ITSELF, false},
      {"knorm:budget=40,sink=0,select_block=3", TEST_PAGES_3_OF_HEADS, 0, 0,
       kBudgets, BY_ITSELF, false},
      {"streaming-llm:budget=44,sink=3", TEST_PAGED_1, 0, 0, NULL, BY_ITSELF,
       false}};
  for (int i = 0; i < 3; ++i) {
    test_model_spec spec = test_small_model(kUndone[i].policy);
    spec.layout = kUndone[i].layout;
    spec.head_budgets = kUndone[i].head_budgets;
    spec.n_companions = 1;
    test_model* m = test_model_create(&spec, (test_random){i + 1});
    test_model_append(m, 83);
    test_lent lent = test_lend(test_undo_bytes(m));
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.undo = lent.memory;
    options.undo_bytes = lent.n_bytes;
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EvictByTable(m, &options, false, &report, kUndone[i].policy);
    cr_expect_eq(report.evicted, 1);
    test_model_append(m, 6);
    EXPECT_OK(test_undo(m, lent));
    cr_expect_eq(test_model_stored(m, 0), 89);
    test_model_check(m, kUndone[i].policy);
    test_lent_check(lent, kUndone[i].policy);
    test_lent_return(lent);
    test_model_destroy(m);
  }
}

/* Keys rotate in place, to the same bytes as those that move. */
Test(sequence_tables, come_with_rotation) {
  static const char* const kTurns[] = {
      "knorm:budget=63,sink=0,select_block=16,scope=layer,rotate=yes",
      "streaming-llm:budget=50,sink=3,select_block=16,rotate=yes"};
  static const float inv_freq[8] = {1.0f,  0.3f,   0.1f,    0.03f,
                                    0.01f, 0.003f, 0.0011f, 0.0004f};
  for (int i = 0; i < 2; ++i) {
    test_model* both[2];
    for (int by_table = 0; by_table < 2; ++by_table) {
      test_model_spec spec = test_small_model("none");
      spec.layout = by_table ? TEST_PAGED_16 : TEST_TOKEN_MAJOR;
      test_model* m = both[by_table] =
          test_model_create(&spec, (test_random){i + 1});
      kvevict_geometry geometry = m->geometry;
      geometry.rope_inv_freq = inv_freq;
      geometry.rope_inv_freq_len = 8;
      EXPECT_OK(test_model_go_on(m, kTurns[i], &geometry, NULL));
      for (int round = 0; round < 3; ++round) {
        test_model_append(m, round == 0 ? 95 : 29);
        kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
        kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
        if (by_table) {
          EvictByTable(m, &options, true, &report, kTurns[i]);
        } else {
          EXPECT_OK(test_model_evict(m, &options, &report));
        }
        cr_expect_eq(report.evicted, 1);
      }
    }
    test_expect_same_tokens(both[1], both[0], kTurns[i]);
    for (uint32_t l = 0; l < 2; ++l) {
      test_expect_same_rows(both[1]->live[l], both[0]->live[l],
                            test_model_stored(both[1], l), kTurns[i]);
    }
    for (int m = 0; m < 2; ++m) test_model_destroy(both[m]);
  }
}
