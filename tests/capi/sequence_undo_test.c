/* Evictions taken back: every byte in use is as it was, and the sequence goes on as one
 * that never evicted. */
#include <stdlib.h>

#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

enum { kGuardBytes = 256 };

/* Memory of just so many bytes between guards. */
typedef struct lent {
  uint8_t* memory;
  size_t n_bytes;
} lent;

static lent Lend(size_t n_bytes) {
  const size_t all = n_bytes + 2 * kGuardBytes;
  lent out = {aligned_alloc(kGuardBytes, (all + 255) / 256 * 256), n_bytes};
  memset(out.memory, TEST_GUARD, all);
  out.memory += kGuardBytes;
  return out;
}

static void CheckGuards(lent undo, const char* what) {
  EXPECT(test_is_filled(undo.memory - kGuardBytes, kGuardBytes) &&
             test_is_filled(undo.memory + undo.n_bytes, kGuardBytes),
         "%s: written beyond %zu bytes", what, undo.n_bytes);
}

static void Return(lent undo) { free(undo.memory - kGuardBytes); }

static size_t UndoBytes(test_model* m) {
  size_t n_bytes = SIZE_MAX;
  EXPECT_OK(kvevict_sequence_undo_bytes(m->sequence, m->views, m->spec.n_layers,
                                        &n_bytes));
  return n_bytes;
}

static kvevict_status Evict(test_model* m, lent undo,
                            kvevict_evict_report* report) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.undo = undo.memory;
  options.undo_bytes = undo.n_bytes;
  return test_model_evict(m, &options, report);
}

static kvevict_status Undo(test_model* m, lent undo) {
  return kvevict_sequence_undo(m->sequence, m->views, m->spec.n_layers,
                               undo.memory, undo.n_bytes, NULL);
}

static void Ends(const test_model* m, uint32_t layer, uint32_t* ends) {
  for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
    ends[h] = test_model_stored_of(m, layer, h);
  }
}

/* Blocks that an eviction freed come back in another order, full of garbage. */
static void ReplaceFreedBlocks(test_model* m, test_random* random) {
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const kvevict_view* view = &m->live[l]->view;
    if (view->block_size == 0) continue;
    const uint32_t n_tables =
        view->block_table_head_stride == 0 ? 1 : m->spec.n_kv_heads;
    const uint32_t n_all =
        (m->spec.max_tokens + view->block_size - 1) / view->block_size;
    for (uint32_t t = 0; t < n_tables; ++t) {
      const uint32_t stored = n_tables == 1 ? test_model_stored(m, l)
                                            : test_model_stored_of(m, l, t);
      int32_t* table =
          m->live[l]->block_table + t * view->block_table_head_stride;
      const uint32_t used = test_cache_blocks(m->live[l], stored);
      for (uint32_t i = n_all; i > used + 1; --i) {
        const uint32_t other = used + test_random_below(random, i - used);
        const int32_t block = table[i - 1];
        table[i - 1] = table[other];
        table[other] = block;
      }
    }
  }
}

/* The same bytes in all rows in use as a twin's. */
static void ExpectAsTwin(const test_model* m, const test_model* twin,
                         const char* what) {
  test_expect_same_tokens(m, twin, what);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    uint32_t ends[8];
    Ends(m, l, ends);
    test_expect_same_rows_of_heads(m->live[l], twin->live[l], ends, what);
  }
  test_model_check(m, what);
}

static void StepBoth(test_model* m, test_model* twin, uint32_t n) {
  test_model_step(m, n);
  test_model_step(twin, n);
}

typedef struct trial {
  const char* policy;
  bool opaque; /* rows need not be read */
} trial;

static const trial kTrials[] = {
    {"streaming-llm:budget=30,sink=2", true},
    {"random:budget=25,seed=3", true},
    {"random:budget=28,scope=model,margin=5", true},
    {"random:budget=32,select_block=4", true},
    {"snapkv:budget=28,sink=2,window=4,pool=avg3", false},
    {"snapkv:budget=28,sink=2,window=4,heads=adaptive", false},
    {"snapkv:budget=28,window=4,heads=threshold,threshold=0.01", false},
    {"knorm:budget=24,scope=model", false},
    {"keydiff:budget=30,split=geometric,alpha=0.7", false},
    {"tova:budget=24,margin=6,every=3", false},
    {"cake:budget=26,window=4", false},
    {"knorm:budget=40,prompt=pinned,every=2", false},
    {"knorm:budget=12,prompt=beside", false},
    {"streaming-llm:budget=20,sink=4,prompt=pinned-beside", true}};

/* Rounds of decoding, with evictions of which some are taken back: the twin has those
 * alone that stay. */
static void Run(const trial* t, uint64_t seed) {
  test_random random = {seed};
  test_model_spec spec = test_small_model(t->policy);
  spec.layout = (test_layout)test_random_below(&random, TEST_N_LAYOUTS);
  spec.n_layers = test_random_between(&random, 1, 3);
  spec.n_companions = test_random_below(&random, 3);
  spec.n_threads = test_random_between(&random, 1, 3);
  spec.max_positions = 400;
  spec.max_tokens = 140;
  if (t->opaque && test_random_coin(&random)) {
    spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
  }
  const test_random content = {seed + 1};
  test_model* m = test_model_create(&spec, content);
  test_model* twin = test_model_create(&spec, content);
  char what[200];
  snprintf(what, sizeof what, "%s, %s, seed %llu", t->policy,
           test_layout_name(spec.layout), (unsigned long long)seed);
  StepBoth(m, twin, test_random_between(&random, 6, 60));
  bool has_ended = false;
  uint32_t n_undone = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    if (test_model_stored(twin, 0) > 110)
      break; /* little goes where scores decide */
    StepBoth(m, twin, test_random_between(&random, 1, 12));
    /* Where prompts do not count, one must have ended for anything to go. */
    if (!has_ended && test_random_below(&random, 4) == 0 &&
        test_model_stored(m, 0) < 36) {
      EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
      EXPECT_OK(kvevict_sequence_end_prompt(twin->sequence));
      has_ended = true;
    }
    const bool is_full = test_model_stored(twin, 0) > 90;
    if (is_full || test_random_below(&random, 3) == 0) { /* it stays */
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      EXPECT_OK(test_model_evict(twin, NULL, NULL));
      ExpectAsTwin(m, twin, what);
      continue;
    }
    test_cache* before[3];
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      before[l] = test_cache_clone(m->live[l]);
    }
    lent undo = Lend(UndoBytes(m));
    kvevict_evict_report report = {.struct_size = sizeof report};
    EXPECT_OK(Evict(m, undo, &report));
    CheckGuards(undo, what);
    EXPECT(report.evicted || test_is_filled(undo.memory, undo.n_bytes),
           "%s: nothing went, but rows were saved", what);
    if (!report.evicted) { /* both are due again at the same time */
      EXPECT_OK(test_model_evict(twin, NULL, NULL));
    }
    const bool appends = report.evicted && test_random_coin(&random);
    const bool replaces = report.evicted && test_random_coin(&random);
    if (replaces) ReplaceFreedBlocks(m, &random);
    if (appends) {
      const uint32_t n = test_random_between(&random, 1, 9);
      StepBoth(m, twin, n);
      const uint32_t back = test_random_below(&random, n + 1);
      EXPECT_OK(kvevict_sequence_trim(m->sequence, m->n_seen - back, NULL));
      EXPECT_OK(kvevict_sequence_trim(twin->sequence, m->n_seen - back, NULL));
      m->n_seen = twin->n_seen = m->n_seen - back;
      const uint32_t w = m->policy.obs_window;
      const uint32_t first = m->n_seen > w ? m->n_seen - w : 0;
      test_model_observe(m, first, m->n_seen - first);
      test_model_observe(twin, first, m->n_seen - first);
    }
    if (report.evicted) {
      lent elsewhere = Lend(undo.n_bytes);
      memcpy(elsewhere.memory, undo.memory, undo.n_bytes);
      EXPECT_OK(Undo(m, elsewhere));
      EXPECT(memcmp(elsewhere.memory, undo.memory, undo.n_bytes) == 0,
             "%s: the memory was written", what);
      EXPECT_INVALID(Undo(m, elsewhere), "nothing to undo");
      Return(elsewhere);
      ++n_undone;
    }
    ExpectAsTwin(m, twin, what);
    for (uint32_t l = 0; l < spec.n_layers; ++l) {
      uint32_t ends[8];
      Ends(m, l, ends);
      /* Slots of tokens that were trimmed are in nobody's use. */
      for (uint32_t h = 0; appends && h < spec.n_kv_heads; ++h) ends[h] += 9;
      if (!replaces) {
        test_expect_same_outside_heads(m->live[l], before[l], ends, what);
      }
      test_cache_destroy(before[l]);
    }
    Return(undo);
  }
  EXPECT(n_undone > 0 || m->policy.prompt != KVEVICT_PROMPT_INSIDE,
         "%s: nothing was undone", what);
  test_model_destroy(twin);
  test_model_destroy(m);
}

Test(undo, leaves_what_would_be_without_the_eviction) {
  const uint64_t seed = test_random_start("undo").state * 1000;
  for (uint32_t i = 0; i < sizeof kTrials / sizeof *kTrials; ++i) {
    for (uint32_t turn = 0; turn < 8; ++turn) {
      Run(&kTrials[i], seed + i * 100 + turn);
    }
  }
}

/* Appends n tokens to both and shows what slots get; those that the twin alone holds
 * get nothing. */
static void StepBothWithSums(test_model* m, test_model* twin, uint32_t n,
                             test_random* random) {
  static test_attention shown, of_twin;
  static int32_t held[TEST_ATTENTION_SLOTS], all[TEST_ATTENTION_SLOTS];
  const uint32_t n_heads = m->spec.n_kv_heads;
  const bool of_layer = m->policy.sum_rows == KVEVICT_SUM_ROWS_LAYER;
  StepBoth(m, twin, n);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const uint32_t n_rows = of_layer ? 1 : n_heads;
    uint32_t most = 0, most_of_twin = 0;
    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint32_t stored = test_model_stored_of(m, l, h);
      const uint32_t stored_of_twin = test_model_stored_of(twin, l, h);
      if (stored > most) most = stored;
      if (stored_of_twin > most_of_twin) most_of_twin = stored_of_twin;
    }
    test_attention_draw(&shown, n_rows, most, random);
    test_attention_draw(&of_twin, n_rows, most_of_twin, random);
    for (uint32_t row = 0; row < n_rows; ++row) {
      const uint32_t n_held = test_model_stored_of(m, l, row);
      const uint32_t n_all = test_model_stored_of(twin, l, row);
      test_model_positions(m, l, row, held);
      test_model_positions(twin, l, row, all);
      uint32_t next = 0;
      for (uint32_t t = 0; t < n_all; ++t) {
        const bool is_held = next < n_held && held[next] == all[t];
        of_twin.values[row][t] = is_held ? shown.values[row][next] : 0.0f;
        next += is_held;
      }
      EXPECT(next == n_held, "the twin lacks tokens");
    }
    const uint32_t first = m->n_seen - n;
    EXPECT_OK(test_attention_observe(m->sequence, l, &shown, n, first));
    EXPECT_OK(test_attention_observe(twin->sequence, l, &of_twin, n, first));
  }
}

/* Sums that moved with their rows come back with them. */
Test(undo, brings_sums_back) {
  const char* const kPolicies[] = {
      "h2o:budget=20,recent=4", "h2o:budget=24,recent=3,rows=mean,margin=2",
      "h2o:budget=20,recent=4,heads=adaptive",
      "h2o:budget=20,sink=2,recent=4,scope=layer,sums=layer"};
  test_random random = test_random_start("undo/sums");
  for (size_t i = 0; i < 4 * (sizeof kPolicies / sizeof *kPolicies); ++i) {
    const char* policy = kPolicies[i / 4];
    test_model_spec spec = test_small_model(policy);
    spec.n_layers = 3;
    spec.layout = (test_layout)test_random_below(&random, TEST_N_LAYOUTS);
    spec.max_positions = 400;
    spec.max_tokens = 120;
    const test_random content = {i + 1};
    test_model* m = test_model_create(&spec, content);
    test_model* twin = test_model_create(&spec, content);
    uint32_t n_undone = 0;
    StepBothWithSums(m, twin, 30, &random);
    for (uint32_t round = 0; round < 25; ++round) {
      const bool undoes = test_random_coin(&random);
      lent undo = Lend(UndoBytes(m));
      kvevict_evict_report report = {.struct_size = sizeof report};
      EXPECT_OK(Evict(m, undo, &report));
      CheckGuards(undo, policy);
      if (!undoes || !report.evicted)
        EXPECT_OK(test_model_evict(twin, NULL, NULL));
      StepBothWithSums(m, twin, test_random_between(&random, 1, 4), &random);
      if (undoes && report.evicted) {
        EXPECT_OK(Undo(m, undo));
        ++n_undone;
      }
      Return(undo);
      test_expect_same_tokens(m, twin, policy);
    }
    EXPECT(n_undone > 3, "%s: undone %u times", policy, n_undone);
    test_model_destroy(twin);
    test_model_destroy(m);
  }
}

static test_model* Filled(const char* policy, uint32_t n) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = 3;
  spec.n_companions = 1;
  spec.max_positions = 400;
  test_model* m = test_model_create(&spec, (test_random){7});
  test_model_step(m, n);
  return m;
}

/* The prompt may end after the eviction: it is then as long as it was. */
Test(undo, prompts_that_ended_since_get_their_tokens_back) {
  test_model* m = Filled("knorm:budget=20,every=2", 50);
  test_model* twin = Filled("knorm:budget=20,every=2", 50);
  lent undo = Lend(UndoBytes(m));
  EXPECT_OK(Evict(m, undo, NULL));
  for (int i = 0; i < 2; ++i) {
    test_model* each = i == 0 ? m : twin;
    test_model_step(each, 3);
    EXPECT_OK(kvevict_sequence_end_prompt(each->sequence));
    test_model_step(each, 2);
  }
  EXPECT_OK(Undo(m, undo));
  uint8_t* saved[2];
  size_t n_saved[2];
  for (int i = 0; i < 2; ++i) {
    kvevict_sequence* s = i == 0 ? m->sequence : twin->sequence;
    EXPECT_OK(kvevict_sequence_save(s, NULL, 0, &n_saved[i]));
    saved[i] = malloc(n_saved[i]);
    EXPECT_OK(kvevict_sequence_save(s, saved[i], n_saved[i], &n_saved[i]));
  }
  EXPECT(
      n_saved[0] == n_saved[1] && memcmp(saved[0], saved[1], n_saved[0]) == 0,
      "another state than without the eviction");
  free(saved[0]);
  free(saved[1]);
  Return(undo);
  test_model_destroy(twin);
  test_model_destroy(m);
}

Test(undo, caches_that_layers_share_come_back_once) {
  static const char* const kPolicies[] = {"knorm:budget=20",
                                          "streaming-llm:budget=20,sink=3",
                                          "random:budget=20,scope=model"};
  for (uint32_t i = 0; i < 3; ++i) {
    test_model* m = Filled(kPolicies[i], 60);
    m->views[2] = m->views[0];
    test_cache* before[2];
    for (int l = 0; l < 2; ++l) before[l] = test_cache_clone(m->live[l]);
    lent undo = Lend(UndoBytes(m));
    /* Of two layers, 40 rows of K, V and a scale in 2 heads, and lists. */
    const size_t rows = 2 * 40 * 2 * (16 * 4 + 8 * 4 + 4);
    EXPECT(undo.n_bytes >= rows && undo.n_bytes < rows + 2 * 600,
           "%s: %zu bytes", kPolicies[i], undo.n_bytes);
    EXPECT_OK(Evict(m, undo, NULL));
    m->views[2] = m->live[2]->view;
    EXPECT_INVALID(Undo(m, undo), "views[2] is the cache of views[2]",
                   "views[0]");
    m->views[2] = m->views[0];
    EXPECT_OK(Undo(m, undo));
    for (int l = 0; l < 2; ++l) {
      test_expect_same_rows(m->live[l], before[l], 60, kPolicies[i]);
      EXPECT(test_model_stored(m, (uint32_t)l) == 60, "layer %d", l);
      test_cache_destroy(before[l]);
    }
    EXPECT(test_model_stored(m, 2) == 60, "of the layer that shares");
    Return(undo);
    test_model_destroy(m);
  }
}

Test(undo, companions_that_layers_share_come_back_once) {
  test_model* m = Filled("streaming-llm:budget=20,sink=3", 60);
  m->views[2].companions = m->views[0].companions;
  test_cache* before[3];
  for (int l = 0; l < 3; ++l) before[l] = test_cache_clone(m->live[l]);
  lent undo = Lend(UndoBytes(m));
  EXPECT_OK(Evict(m, undo, NULL));
  EXPECT_OK(Undo(m, undo));
  for (int l = 0; l < 3; ++l) {
    test_expect_same_rows(m->live[l], before[l], 60, "shared companions");
    test_cache_destroy(before[l]);
  }
  Return(undo);
  test_model_destroy(m);
}

Test(undo, is_of_the_last_eviction_and_once) {
  test_model* m = Filled("knorm:budget=20,margin=2", 60);
  lent undo = Lend(UndoBytes(m));
  EXPECT_INVALID(Undo(m, undo), "nothing to undo");
  /* Calls that leave all alone do not count. */
  EXPECT_OK(Evict(m, undo, NULL));
  test_model_step(m, 1);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(Evict(m, undo, NULL));
  EXPECT_OK(Undo(m, undo));
  EXPECT(test_model_stored(m, 0) == 61, "%u slots", test_model_stored(m, 0));
  test_model_check(m, "undone");
  EXPECT_INVALID(Undo(m, undo), "nothing to undo");
  /* One without memory is the last one then. */
  Return(undo);
  undo = Lend(UndoBytes(m));
  EXPECT_OK(Evict(m, undo, NULL));
  test_model_step(m, 5);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_INVALID(Undo(m, undo), "nothing to undo");
  /* A reset, a load and a trim to before. */
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    m->n_seen = 0;
    test_model_step(m, 60);
    EXPECT_OK(Evict(m, undo, NULL));
    if (i == 0) EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    uint8_t saved[4096];
    size_t n = 0;
    if (i == 1) {
      EXPECT_OK(kvevict_sequence_save(m->sequence, saved, sizeof saved, &n));
      EXPECT_OK(kvevict_sequence_load(m->sequence, saved, n, NULL));
    }
    if (i == 2) EXPECT_OK(kvevict_sequence_trim(m->sequence, 0, NULL));
    EXPECT_INVALID(Undo(m, undo), "nothing to undo");
  }
  Return(undo);
  test_model_destroy(m);
}

Test(undo, forks_have_nothing_to_undo) {
  test_model* m = Filled("knorm:budget=20", 60);
  lent undo = Lend(UndoBytes(m));
  EXPECT_OK(Evict(m, undo, NULL));
  kvevict_sequence* fork = NULL;
  EXPECT_OK(kvevict_sequence_fork(m->sequence, NULL, &fork, NULL));
  EXPECT_INVALID(
      kvevict_sequence_undo(fork, m->views, 3, undo.memory, undo.n_bytes, NULL),
      "nothing to undo");
  EXPECT_OK(Undo(m, undo));
  test_model_check(m, "the one that was forked");
  kvevict_sequence_destroy(fork);
  Return(undo);
  test_model_destroy(m);
}

/* A report of what no longer is would be wrong. */
Test(undo, empties_the_report) {
  test_model* m = Filled("knorm:budget=20", 60);
  lent undo = Lend(UndoBytes(m));
  EXPECT_OK(Evict(m, undo, NULL));
  EXPECT_OK(Undo(m, undo));
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(kvevict_sequence_report(m->sequence, &report, NULL, 0));
  cr_expect_eq(report.evicted, 0);
  cr_expect_eq(report.tokens_before, 0);
  Return(undo);
  test_model_destroy(m);
}

Test(undo, what_changes_rows_that_stay_is_refused) {
  static const char* const kPolicies[] = {
      "knorm:budget=20,merge=values",
      "streaming-llm:budget=20,sink=3,rotate=yes"};
  float inv_freq[8] = {1.0f};
  for (uint32_t i = 0; i < 2; ++i) {
    kvevict_layer_geometry layer = test_layer(4, 2, 16, 8);
    kvevict_geometry geometry = test_geometry(3, 100, &layer);
    geometry.rope_inv_freq = inv_freq;
    geometry.rope_inv_freq_len = 8;
    test_plan* plan =
        test_plan_create(kPolicies[i], &geometry, KVEVICT_OPERATION_EVICT, 1);
    test_model* m = Filled("knorm:budget=20", 60); /* its caches */
    kvevict_sequence* sequence = NULL;
    EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
    EXPECT_OK(kvevict_sequence_append(sequence, 60, NULL));
    size_t n_bytes = 5;
    lent undo = Lend(1 << 16);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.undo = undo.memory;
    options.undo_bytes = undo.n_bytes;
    const char* const word = i == 0 ? "merges" : "turns";
    EXPECT_FAILS(kvevict_sequence_undo_bytes(sequence, m->views, 3, &n_bytes),
                 KVEVICT_ERROR_UNSUPPORTED, "undo", word);
    EXPECT_FAILS(
        kvevict_sequence_evict(sequence, m->views, 3, &options, plan->workspace,
                               plan->workspace_bytes, NULL),
        KVEVICT_ERROR_UNSUPPORTED, "undo", word);
    test_model_check(m, "refused");
    Return(undo);
    kvevict_sequence_destroy(sequence);
    test_plan_destroy(plan);
    test_model_destroy(m);
  }
}

Test(undo, arguments_are_checked_before_a_byte_moves) {
  test_model* m = Filled("knorm:budget=20", 60);
  size_t n_bytes = 0;
  EXPECT_INVALID(kvevict_sequence_undo_bytes(NULL, m->views, 3, &n_bytes),
                 "sequence");
  EXPECT_INVALID(kvevict_sequence_undo_bytes(m->sequence, NULL, 3, &n_bytes),
                 "views");
  EXPECT_INVALID(kvevict_sequence_undo_bytes(m->sequence, m->views, 3, NULL),
                 "out_bytes");
  lent undo = Lend(UndoBytes(m));
  const lent none = {NULL, 5};
  EXPECT_INVALID(Evict(m, none, NULL), "undo is NULL", "undo_bytes is 5");
  const lent less = {undo.memory, undo.n_bytes - 1};
  char text[64];
  snprintf(text, sizeof text, "undo_bytes %zu < %zu", less.n_bytes,
           undo.n_bytes);
  EXPECT_INVALID(Evict(m, less, NULL), text);
  const lent odd = {undo.memory + 4, undo.n_bytes};
  EXPECT_INVALID(Evict(m, odd, NULL), "undo", "64-byte aligned");
  EXPECT(test_is_filled(undo.memory, undo.n_bytes), "rows were saved");
  EXPECT(test_model_stored(m, 0) == 60, "tokens went");
  EXPECT_OK(Evict(m, undo, NULL));

  EXPECT_INVALID(
      kvevict_sequence_undo(NULL, m->views, 3, undo.memory, undo.n_bytes, NULL),
      "sequence");
  EXPECT_INVALID(Undo(m, (lent){NULL, undo.n_bytes}), "undo is NULL");
  EXPECT_INVALID(Undo(m, less), text);
  EXPECT_INVALID(Undo(m, odd), "64-byte aligned");
  m->views[1].k.head_dim -= 1;
  EXPECT_INVALID(Undo(m, undo), "views[1]", "head_dim");
  m->views[1].k.head_dim += 1;
  /* All that comes back and what was appended since need slots. */
  test_model_step(m, 50);
  EXPECT_INVALID(Undo(m, undo), "layer 0: 110 slots", "max_tokens 100");
  EXPECT_OK(kvevict_sequence_trim(m->sequence, 100, NULL));
  m->n_seen = 100;
  EXPECT_OK(Undo(m, undo));
  EXPECT(test_model_stored(m, 0) == 100, "%u", test_model_stored(m, 0));
  test_model_check(m, "after all that");
  Return(undo);
  test_model_destroy(m);
}

Test(undo, an_eviction_that_does_nothing_needs_no_memory) {
  test_model* m = Filled("knorm:budget=70", 60);
  EXPECT(UndoBytes(m) == 0, "%zu bytes", UndoBytes(m));
  uint8_t one = 0;
  EXPECT_OK(Evict(m, (lent){&one, 0}, NULL));
  EXPECT_INVALID(Undo(m, (lent){&one, 1}), "nothing to undo");
  test_model_destroy(m);
  m = Filled("none", 60);
  EXPECT(UndoBytes(m) == 0, "%zu bytes", UndoBytes(m));
  EXPECT_INVALID(Undo(m, (lent){&one, 1}), "nothing to undo");
  test_model_destroy(m);
}
