/* Lists with counts and strides of their own, and all layers of a model in one call:
 * kvevict_select(), kvevict_compact() and kvevict_reorder() without a plan. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/select.h"

enum {
  kMaxLists = 5,
  kMaxTokens = 700,
  kMaxLayers = 6,
  kGuardSlot = -1515870811
};

static kvevict_context* ContextOf(uint32_t n_threads, test_runner* runner) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_runner_install(runner, n_threads, &options);
  kvevict_context* made = NULL;
  EXPECT_OK(kvevict_context_create(&options, &made));
  return made;
}

/* ---- Select ---- */

/* One call of kvevict_select() and the lists it should write. */
typedef struct select_case {
  kvevict_select_options options;
  kvevict_keep_lists keep;
  uint32_t n_rows; /* rows of scores */
  float* scores;
  uint32_t tokens[kMaxLists], counts[kMaxLists];
  int32_t protect[6];
  int32_t* slots;
} select_case;

static uint32_t Min(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Marks what must stay of a list; returns how many. */
static uint32_t Forced(const select_case* c, uint32_t n, uint8_t* forced) {
  const kvevict_select_options* o = &c->options;
  uint32_t n_forced = 0;
  for (uint32_t i = 0; i < n; ++i) {
    forced[i] = i < o->n_sink || i + o->n_recent >= n;
  }
  for (size_t i = 0; i < o->protected_slots_len; ++i) {
    if ((uint32_t)c->protect[i] < n) forced[c->protect[i]] = 1;
  }
  for (uint32_t i = 0; i < n; ++i) n_forced += forced[i];
  return n_forced;
}

static float RandomScore(test_random* random) {
  switch (test_random_below(random, 30)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -INFINITY;
    default:
      return (float)((int)test_random_below(random, 100) - 50) / 8.0f;
  }
}

/* Lists of random lengths, each with a random share to keep. */
static select_case RandomSelect(test_random* random) {
  select_case c;
  memset(&c, 0, sizeof c);
  c.options = (kvevict_select_options)KVEVICT_SELECT_OPTIONS_INIT;
  c.keep = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;
  kvevict_select_options* o = &c.options;
  kvevict_keep_lists* k = &c.keep;
  k->n_lists = test_random_between(random, 1, kMaxLists);
  o->n_tokens = test_random_between(random, 1, kMaxTokens);
  o->n_sink = test_random_below(random, 5);
  o->n_recent = test_random_below(random, 5);
  o->tie = test_random_coin(random) ? KVEVICT_TIE_LOWER_POSITION
                                    : KVEVICT_TIE_HIGHER_POSITION;
  o->reduce = (kvevict_reduce)test_random_below(random, 3);
  o->protected_slots_len = Min(test_random_below(random, 7), o->n_tokens);
  test_random_ascending(random, c.protect, (uint32_t)o->protected_slots_len,
                        o->n_tokens);
  const bool ragged = test_random_coin(random);
  const bool lengths = ragged && test_random_coin(random);
  const bool ranks = test_random_below(random, 4) != 0;
  c.n_rows = k->n_lists * (lengths || !ranks || test_random_coin(random)
                               ? 1
                               : test_random_between(random, 2, 4));
  o->n_rows = c.n_rows == k->n_lists && test_random_coin(random) ? 0 : c.n_rows;
  uint8_t forced[kMaxTokens];
  for (uint32_t l = 0; l < k->n_lists; ++l) {
    c.tokens[l] =
        lengths ? test_random_below(random, o->n_tokens + 1) : o->n_tokens;
    const uint32_t n_forced = Forced(&c, c.tokens[l], forced);
    c.counts[l] = test_random_between(random, n_forced, c.tokens[l]);
    if (!ragged) c.counts[l] = c.counts[0];
    if (c.counts[l] > k->count) k->count = c.counts[l];
  }
  k->count += ragged ? test_random_below(random, 3) : 0;
  k->list_stride = test_random_coin(random) ? 0 : k->count + 3;
  const uint64_t stride = k->list_stride == 0 ? k->count : k->list_stride;
  k->slots_len = (size_t)stride * (k->n_lists - 1) + k->count;
  c.slots = malloc((k->slots_len + 8) * sizeof(int32_t));
  memset(c.slots, TEST_GUARD, (k->slots_len + 8) * sizeof(int32_t));
  const size_t n_scores = (size_t)c.n_rows * o->n_tokens;
  c.scores = malloc(n_scores * sizeof(float));
  for (size_t i = 0; i < n_scores; ++i) c.scores[i] = RandomScore(random);
  if (ranks) {
    o->scores = c.scores;
    o->scores_len = n_scores;
  } else {
    for (size_t i = 0; i < n_scores; ++i) c.scores[i] = 0.0f;
  }
  return c;
}

/* Sets the pointers into the case once it lies where it stays. */
static void Aim(select_case* c, bool lengths, bool ragged) {
  c->options.protected_slots =
      c->options.protected_slots_len > 0 ? c->protect : NULL;
  c->options.token_counts = lengths ? c->tokens : NULL;
  c->keep.counts = ragged ? c->counts : NULL;
  c->keep.slots = c->slots;
}

static bool Differ(const uint32_t* numbers, uint32_t n, uint32_t from) {
  for (uint32_t i = 0; i < n; ++i) {
    if (numbers[i] != from) return true;
  }
  return false;
}

static void ExpectSelected(const select_case* c) {
  const kvevict_select_options* o = &c->options;
  const kvevict_keep_lists* k = &c->keep;
  const uint64_t stride = k->list_stride == 0 ? k->count : k->list_stride;
  const uint32_t per_list = c->n_rows / k->n_lists;
  uint8_t* written = calloc(k->slots_len + 8, 1);
  for (uint32_t l = 0; l < k->n_lists; ++l) {
    float combined[kMaxTokens];
    uint8_t forced[kMaxTokens];
    int32_t expected[kMaxTokens];
    oracle_combine(c->scores + (size_t)l * per_list * o->n_tokens, per_list,
                   o->n_tokens, o->reduce, combined);
    Forced(c, c->tokens[l], forced);
    oracle_select(combined, c->tokens[l], c->counts[l], forced, o->tie,
                  expected);
    for (uint32_t i = 0; i < c->counts[l]; ++i) {
      EXPECT(c->slots[l * stride + i] == expected[i],
             "list %u of %u tokens, %u kept: slot %u is %d, not %d", l,
             c->tokens[l], c->counts[l], i, c->slots[l * stride + i],
             expected[i]);
      written[l * stride + i] = 1;
    }
  }
  for (size_t i = 0; i < k->slots_len + 8; ++i) {
    EXPECT(written[i] || c->slots[i] == kGuardSlot,
           "element %zu, beyond the count of its list, was written", i);
  }
  free(written);
}

Test(keep_lists, selection_agrees_with_the_oracle_for_any_counts) {
  test_random random = test_random_start("keep lists, select");
  uint32_t n_ragged = 0, n_lengths = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    test_runner runner;
    kvevict_context* with = ContextOf(1 + i % 4, &runner);
    select_case c = RandomSelect(&random);
    const bool lengths = Differ(c.tokens, c.keep.n_lists, c.options.n_tokens);
    const bool ragged = Differ(c.counts, c.keep.n_lists, c.keep.count);
    Aim(&c, lengths, ragged);
    n_ragged += ragged;
    n_lengths += lengths;
    kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
    EXPECT_OK(
        kvevict_select_workspace(with, c.options.n_tokens, c.keep.n_lists, &w));
    const size_t bytes = w.least_bytes;
    uint8_t* workspace = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
    memset(workspace, TEST_GUARD, bytes + 64);
    EXPECT_OK(
        kvevict_select(with, &c.options, &c.keep, workspace, bytes, NULL));
    EXPECT(test_is_filled(workspace + bytes, 64),
           "wrote beyond a workspace of %zu bytes", bytes);
    ExpectSelected(&c);
    free(workspace);
    free(c.scores);
    free(c.slots);
    kvevict_context_destroy(with);
  }
  cr_assert(n_ragged > 300 && n_lengths > 200, "%u ragged, %u lengths",
            n_ragged, n_lengths);
}

/* ---- Compact and reorder ---- */

/* The layers of a call, each with its own cache and lists. */
typedef struct layers {
  uint32_t n;
  test_cache* ours[kMaxLayers];
  test_cache* theirs[kMaxLayers];
  test_cache* before[kMaxLayers];
  kvevict_keep_lists keep[kMaxLayers];
  kvevict_move moves[kMaxLayers];
  uint32_t counts[kMaxLayers][4];
  uint32_t n_tokens[kMaxLayers];
  int32_t slots[kMaxLayers][4 * 96];
} layers;

static const test_cache_spec kSpec = {
    TEST_TOKEN_MAJOR, 3, 60, KVEVICT_DTYPE_F32, 5, KVEVICT_DTYPE_F16, 3, 1};

static test_cache_spec RandomSpec(test_random* random) {
  test_cache_spec spec = kSpec;
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  spec.n_kv_heads = test_random_between(random, 1, 4);
  spec.capacity = test_random_between(random, 1, 90);
  spec.k_dtype = (kvevict_dtype)test_random_below(random, 4);
  spec.k_head_dim = test_random_between(random, 1, 20);
  spec.v_head_dim = test_random_below(random, 20);
  spec.n_companions = test_random_below(random, 3);
  return spec;
}

static void RandomLists(test_random* random, layers* all, uint32_t l,
                        bool ascending) {
  const uint32_t heads = all->ours[l]->spec.n_kv_heads;
  const uint32_t n = all->n_tokens[l];
  kvevict_keep_lists* k = &all->keep[l];
  *k = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;
  k->n_lists = test_random_coin(random) ? 1 : heads;
  const bool ragged = test_random_below(random, 3) != 0;
  for (uint32_t i = 0; i < k->n_lists; ++i) {
    all->counts[l][i] = test_random_below(random, n + 1);
    if (!ragged) all->counts[l][i] = all->counts[l][0];
    if (all->counts[l][i] > k->count) k->count = all->counts[l][i];
  }
  if (ragged && k->count < n) k->count += test_random_below(random, 2);
  k->counts = ragged ? all->counts[l] : NULL;
  k->list_stride = test_random_coin(random) ? 0 : k->count + 2;
  k->slots = all->slots[l];
  const uint32_t stride =
      k->list_stride == 0 ? k->count : (uint32_t)k->list_stride;
  k->slots_len = (size_t)stride * (k->n_lists - 1) + k->count;
  /* Entries beyond a count are no slots and must not be read. */
  memset(k->slots, TEST_GUARD, sizeof all->slots[l]);
  for (uint32_t i = 0; i < k->n_lists; ++i) {
    int32_t* list = k->slots + (size_t)i * stride;
    test_random_ascending(random, list, all->counts[l][i], n);
    for (uint32_t j = 0; !ascending && j < all->counts[l][i]; ++j) {
      if (n > 0) list[j] = (int32_t)test_random_below(random, n);
    }
  }
}

static layers* RandomLayers(test_random* random, bool ascending) {
  layers* all = calloc(1, sizeof *all);
  all->n = test_random_between(random, 1, kMaxLayers);
  const test_cache_spec one = RandomSpec(random);
  for (uint32_t l = 0; l < all->n; ++l) {
    const test_cache_spec spec =
        test_random_coin(random) ? one : RandomSpec(random);
    all->ours[l] = test_cache_create(&spec, random);
    all->theirs[l] = test_cache_clone(all->ours[l]);
    all->before[l] = test_cache_clone(all->ours[l]);
    all->n_tokens[l] = test_random_below(random, spec.capacity + 1);
    RandomLists(random, all, l, ascending);
    all->moves[l] = (kvevict_move)KVEVICT_MOVE_INIT;
    all->moves[l].n_tokens = all->n_tokens[l];
    all->moves[l].view = &all->ours[l]->view;
    all->moves[l].keep = &all->keep[l];
    oracle_compact_lists(&all->theirs[l]->view, &all->keep[l]);
  }
  return all;
}

static void DestroyLayers(layers* all) {
  for (uint32_t l = 0; l < all->n; ++l) {
    test_cache_destroy(all->ours[l]);
    test_cache_destroy(all->theirs[l]);
    test_cache_destroy(all->before[l]);
  }
  free(all);
}

static uint32_t CountOf(const layers* all, uint32_t l, uint32_t head) {
  const kvevict_keep_lists* k = &all->keep[l];
  return k->counts == NULL ? k->count : k->counts[k->n_lists == 1 ? 0 : head];
}

Test(keep_lists, layers_are_compacted_in_one_call_as_one_by_one) {
  test_random random = test_random_start("keep lists, compact");
  for (uint32_t i = 0; i < 1500; ++i) {
    test_runner runner;
    kvevict_context* with = ContextOf(1 + i % 4, &runner);
    layers* all = RandomLayers(&random, true);
    EXPECT_OK(kvevict_compact(with, all->moves, all->n, NULL, 0, NULL));
    for (uint32_t l = 0; l < all->n; ++l) {
      const char* what = test_layout_name(all->ours[l]->spec.layout);
      uint32_t kept[4], held[4];
      for (uint32_t h = 0; h < 4; ++h) {
        kept[h] = CountOf(all, l, h);
        held[h] = all->n_tokens[l];
      }
      test_expect_same_rows_of_heads(all->ours[l], all->theirs[l], kept, what);
      test_expect_same_outside_heads(all->ours[l], all->before[l], held, what);
    }
    DestroyLayers(all);
    kvevict_context_destroy(with);
  }
}

Test(keep_lists, layers_are_reordered_in_one_call_as_one_by_one) {
  test_random random = test_random_start("keep lists, reorder");
  for (uint32_t i = 0; i < 1500; ++i) {
    test_runner runner;
    kvevict_context* with = ContextOf(1 + i % 4, &runner);
    layers* all = RandomLayers(&random, i % 3 == 0);
    kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
    EXPECT_OK(kvevict_reorder_workspace(with, all->moves, all->n, &w));
    const size_t bytes = w.least_bytes;
    uint8_t* workspace = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
    memset(workspace, TEST_GUARD, bytes + 64);
    EXPECT_OK(kvevict_reorder(with, all->moves, all->n,
                              bytes == 0 ? NULL : workspace, bytes, NULL));
    EXPECT(test_is_filled(workspace + bytes, 64),
           "wrote beyond a workspace of %zu bytes", bytes);
    for (uint32_t l = 0; l < all->n; ++l) {
      test_expect_same_bytes(all->ours[l], all->theirs[l],
                             test_layout_name(all->ours[l]->spec.layout));
    }
    free(workspace);
    DestroyLayers(all);
    kvevict_context_destroy(with);
  }
}

Test(keep_lists, as_many_layers_as_a_call_takes) {
  enum { kN = KVEVICT_MAX_JOBS };
  test_random random = {7};
  static kvevict_move moves[kN];
  static test_cache* caches[kN];
  static test_cache* expected[kN];
  int32_t slots[3 * 20];
  for (int h = 0; h < 3; ++h)
    test_random_ascending(&random, slots + 20 * h, 20, 60);
  const kvevict_keep_lists keep = test_lists(slots, 20, 3);
  for (int l = 0; l < kN; ++l) {
    caches[l] = test_cache_create(&kSpec, &random);
    expected[l] = test_cache_clone(caches[l]);
    moves[l] = (kvevict_move){.struct_size = sizeof moves[l],
                              .n_tokens = 60,
                              .view = &caches[l]->view,
                              .keep = &keep};
    oracle_compact_lists(&expected[l]->view, &keep);
  }
  EXPECT_OK(kvevict_compact(test_context(), moves, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_compact(test_context(), NULL, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_compact(test_context(), moves, kN, NULL, 0, NULL));
  for (int l = 0; l < kN; ++l) {
    test_expect_same_rows(caches[l], expected[l], 20, "128 layers");
    test_cache_destroy(caches[l]);
    test_cache_destroy(expected[l]);
  }
}

/* A caller of a later release has moves that lie further apart. */
Test(keep_lists, moves_are_as_far_apart_as_their_size_says) {
  test_random random = {8};
  struct {
    kvevict_move move;
    uint64_t later;
  } moves[2];
  memset(moves, 0, sizeof moves);
  const int32_t slots[2] = {4, 9};
  const kvevict_keep_lists keep = test_lists(slots, 2, 1);
  test_cache* caches[2];
  test_cache* expected[2];
  for (int l = 0; l < 2; ++l) {
    caches[l] = test_cache_create(&kSpec, &random);
    expected[l] = test_cache_clone(caches[l]);
    moves[l].move = (kvevict_move){.struct_size = sizeof moves[0],
                                   .n_tokens = 60,
                                   .view = &caches[l]->view,
                                   .keep = &keep};
    oracle_compact_lists(&expected[l]->view, &keep);
  }
  moves[1].later = 1;
  EXPECT_INVALID(
      kvevict_compact(test_context(), &moves[0].move, 2, NULL, 0, NULL),
      "moves[1]", "struct_size");
  moves[1].later = 0;
  moves[1].move.struct_size = sizeof moves[0].move;
  EXPECT_INVALID(
      kvevict_compact(test_context(), &moves[0].move, 2, NULL, 0, NULL),
      "moves[1].struct_size");
  moves[1].move.struct_size = sizeof moves[0];
  EXPECT_OK(kvevict_compact(test_context(), &moves[0].move, 2, NULL, 0, NULL));
  for (int l = 0; l < 2; ++l) {
    test_expect_same_rows(caches[l], expected[l], 2, "wider moves");
    test_cache_destroy(caches[l]);
    test_cache_destroy(expected[l]);
  }
}

/* ---- What layers of one call must not share ---- */

/* Both calls refuse the two moves, and no byte changes. */
static void ExpectRefused(const kvevict_move* moves, size_t n,
                          test_cache* const* caches, size_t n_caches,
                          const char* text, const char* text2) {
  test_cache* before[3];
  for (size_t i = 0; i < n_caches; ++i) before[i] = test_cache_clone(caches[i]);
  EXPECT_INVALID(kvevict_compact(test_context(), moves, n, NULL, 0, NULL), text,
                 text2);
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_reorder_workspace(test_context(), moves, n, &w));
  const size_t bytes = w.least_bytes;
  void* workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
  EXPECT_INVALID(
      kvevict_reorder(test_context(), moves, n, workspace, bytes, NULL), text,
      text2);
  free(workspace);
  for (size_t i = 0; i < n_caches; ++i) {
    test_expect_same_bytes(caches[i], before[i], text);
    test_cache_destroy(before[i]);
  }
}

Test(keep_lists, layers_that_share_rows_are_refused) {
  test_random random = {9};
  const int32_t slots[4] = {1, 7, 20, 59};
  const kvevict_keep_lists keep = test_lists(slots, 4, 1);
  for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
    test_cache_spec spec = kSpec;
    spec.layout = (test_layout)layout;
    test_cache* caches[2] = {test_cache_create(&spec, &random),
                             test_cache_create(&spec, &random)};
    kvevict_view views[3] = {caches[0]->view, caches[1]->view, caches[0]->view};
    kvevict_move moves[3];
    for (int i = 0; i < 3; ++i) {
      moves[i] = (kvevict_move){.struct_size = sizeof moves[i],
                                .n_tokens = 60,
                                .view = &views[i],
                                .keep = &keep};
    }
    EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
    ExpectRefused(moves, 3, caches, 2, "moves[2].view", "moves[0]");
    /* One byte further it is another cache, which overlaps the first one. */
    views[2].k.data += 1;
    views[2].v.data += 1;
    views[2].companions = NULL;
    views[2].n_companions = 0;
    ExpectRefused(moves, 3, caches, 2, "overlap", "2");
    test_cache_destroy(caches[0]);
    test_cache_destroy(caches[1]);
  }
}

Test(keep_lists, a_companion_of_two_layers_is_refused) {
  test_random random = {10};
  const int32_t slots[2] = {1, 7};
  const kvevict_keep_lists keep = test_lists(slots, 2, 1);
  test_cache* caches[2] = {test_cache_create(&kSpec, &random),
                           test_cache_create(&kSpec, &random)};
  kvevict_view views[2] = {caches[0]->view, caches[1]->view};
  views[1].companions = caches[0]->companions;
  kvevict_move moves[2];
  for (int i = 0; i < 2; ++i) {
    moves[i] = (kvevict_move){.struct_size = sizeof moves[i],
                              .n_tokens = 60,
                              .view = &views[i],
                              .keep = &keep};
  }
  ExpectRefused(moves, 2, caches, 2, "moves[1].view", "companion");
  test_cache_destroy(caches[0]);
  test_cache_destroy(caches[1]);
}

Test(keep_lists, mistakes_name_their_move) {
  test_random random = {11};
  int32_t slots[2][2] = {{1, 7}, {3, 2}};
  uint32_t counts[3] = {2, 2, 3};
  kvevict_keep_lists keep[2] = {test_lists(slots[0], 2, 1),
                                test_lists(slots[1], 2, 1)};
  test_cache* caches[2] = {test_cache_create(&kSpec, &random),
                           test_cache_create(&kSpec, &random)};
  kvevict_move moves[2];
  for (int i = 0; i < 2; ++i) {
    moves[i] = (kvevict_move){.struct_size = sizeof moves[i],
                              .n_tokens = 60,
                              .view = &caches[i]->view,
                              .keep = &keep[i]};
  }
  test_cache* before[2] = {test_cache_clone(caches[0]),
                           test_cache_clone(caches[1])};
#define EXPECT_NAMES(...)                                                  \
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL), \
                 __VA_ARGS__)
  EXPECT_NAMES("moves[1]", "keep[0][1] 2");
  slots[1][1] = 60;
  EXPECT_NAMES("moves[1]", "keep[0][1] 60", "n_tokens 60");
  slots[1][1] = 5;
  int32_t of_heads[6] = {0, 1, 0, 1, 0, 1};
  keep[1] = test_lists(of_heads, 2, 3);
  keep[1].counts = counts;
  EXPECT_NAMES("moves[1]", "keep.counts[2] 3", "2");
  keep[1].counts = NULL;
  keep[1].list_stride = UINT64_C(1) << 32;
  keep[1].slots_len = SIZE_MAX / 8;
  EXPECT_NAMES("moves[1]", "keep.list_stride 4294967296 > 4294967295");
  keep[1] = test_lists(of_heads, 2, 3);
  moves[1].n_tokens = 1;
  EXPECT_NAMES("moves[1]", "keep.count 2", "n_tokens 1");
  moves[1].n_tokens = 60;
  moves[1].keep = NULL;
  EXPECT_NAMES("moves[1]", "keep", "NULL");
  moves[1].keep = &keep[1];
  for (int i = 0; i < 2; ++i) {
    test_expect_same_bytes(caches[i], before[i], "refused");
    test_cache_destroy(caches[i]);
    test_cache_destroy(before[i]);
  }
}
