/* Holds kvevict_compact() from a slot on, and between caches, against the oracle:
 * in every pair of layouts and dtypes, and ragged. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/moves.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

enum { kMaxHeads = 4, kCapacity = 60, kMostFirst = 40 };

/* The slots [begin, end) of each head whose block table entries a call may read. */
typedef struct slots {
  uint32_t begin, end[kMaxHeads];
} slots;

/* Copies the view of a cache with a block table and sets all other entries to -1.
 * Tables of addresses lose those entries. */
static kvevict_view Exposed(test_cache* c, const slots* used, int32_t** table) {
  kvevict_view view = c->view;
  *table = NULL;
  if (view.block_size == 0 || view.ring_slots != 0) return view;
  const uint64_t stride = view.block_table_head_stride;
  const uint32_t n_tables = stride == 0 ? 1 : view.n_kv_heads;
  const uint32_t n = test_cache_blocks(c, c->spec.capacity);
  const size_t len = view.block_table_len;
  *table = malloc((len + 1) * sizeof **table);
  memcpy(*table, view.block_table == NULL ? *table : view.block_table,
         len * sizeof **table);
  for (uint32_t h = 0; h < n_tables; ++h) {
    uint32_t end = used->end[h];
    for (uint32_t i = 0; n_tables == 1 && i < view.n_kv_heads; ++i) {
      if (used->end[i] > end) end = used->end[i];
    }
    for (uint32_t i = 0; i < n; ++i) {
      const bool is_used = i >= used->begin / view.block_size &&
                           i * view.block_size < end && used->begin < end;
      if (is_used) continue;
      if (view.block_table == NULL) {
        test_cache_free_entry(c, h * stride + i);
      } else {
        (*table)[h * stride + i] = -1;
      }
    }
  }
  if (view.block_table != NULL) view.block_table = *table;
  return view;
}

/* A random move, in place or to another cache, and what the oracle makes of it. */
typedef struct trial {
  test_cache *ours, *theirs, *before; /* where rows come from */
  test_cache *to, *to_theirs;         /* NULL: in place */
  kvevict_view view, destination;
  int32_t *table, *to_table;
  uint32_t held[kMaxHeads], counts[kMaxHeads];
  int32_t slots[kMaxHeads * kCapacity];
  kvevict_keep_lists keep;
  kvevict_move move;
} trial;

static uint32_t CountOf(const trial* t, uint32_t head) {
  return t->counts[t->keep.n_lists == 1 ? 0 : head];
}

/* Draws rows of a spec. `to` is a layout; TEST_N_LAYOUTS means in place. */
static trial* Draw(test_cache_spec spec, test_layout to, test_random* random) {
  trial* t = calloc(1, sizeof *t);
  spec.capacity = kCapacity;
  t->ours = test_cache_create(&spec, random);
  t->before = test_cache_clone(t->ours);
  t->theirs = test_cache_clone(t->ours);
  t->move = (kvevict_move)KVEVICT_MOVE_INIT;
  test_draw_held(random, spec.n_kv_heads, kCapacity, t->held, &t->move);
  const bool in_place = to == TEST_N_LAYOUTS;
  t->move.first_slot = test_random_below(
      random, in_place ? t->move.n_tokens + 1 : kMostFirst + 1);
  if (!in_place) {
    spec.layout = to;
    spec.capacity = kMostFirst + kCapacity;
    t->to = test_cache_create(&spec, random);
    t->to_theirs = test_cache_clone(t->to);
  }
  test_draw_lists(random, spec.n_kv_heads, in_place ? t->move.first_slot : 0,
                  t->held, kCapacity, t->counts, t->slots, &t->keep);
  oracle_compact_to(&t->theirs->view,
                    in_place ? &t->theirs->view : &t->to_theirs->view,
                    t->move.first_slot, &t->keep);

  /* Entries of rows that are neither read nor written must not be looked up. */
  slots used = {in_place ? t->move.first_slot : 0, {0}};
  slots written = {t->move.first_slot, {0}};
  for (uint32_t h = 0; h < spec.n_kv_heads; ++h) {
    const bool own = t->ours->view.block_table_head_stride != 0;
    used.end[h] = own ? t->held[h] : t->move.n_tokens;
    written.end[h] = written.begin + CountOf(t, h);
    if (in_place || t->to->view.block_table_head_stride != 0) continue;
    written.end[h] = written.begin + t->keep.count;
  }
  t->view = Exposed(t->ours, &used, &t->table);
  t->move.view = &t->view;
  t->move.keep = &t->keep;
  if (in_place) return t;
  t->destination = Exposed(t->to, &written, &t->to_table);
  t->move.destination = &t->destination;
  return t;
}

static void ExpectMoved(const trial* t, const char* what) {
  test_cache_restore_entries(t->ours, t->before);
  if (t->to != NULL) {
    test_expect_same_bytes(t->ours, t->before, what);
    test_expect_same_bytes(t->to, t->to_theirs, what);
    return;
  }
  uint32_t ends[kMaxHeads] = {0};
  const uint32_t first = t->move.first_slot;
  for (uint32_t h = 0; h < t->ours->spec.n_kv_heads; ++h) {
    const uint32_t held = t->held[h];
    ends[h] = held < first ? held : first + CountOf(t, h);
  }
  test_expect_same_rows_of_heads(t->ours, t->theirs, ends, what);
  test_expect_same_outside_heads(t->ours, t->before, t->held, what);
}

static void Destroy(trial* t) {
  test_cache_destroy(t->ours);
  test_cache_destroy(t->theirs);
  test_cache_destroy(t->before);
  if (t->to != NULL) test_cache_destroy(t->to);
  if (t->to != NULL) test_cache_destroy(t->to_theirs);
  free(t->table);
  free(t->to_table);
  free(t);
}

static test_cache_spec RandomSpec(test_layout layout, kvevict_dtype k,
                                  test_random* random) {
  return (test_cache_spec){layout,
                           test_random_between(random, 1, kMaxHeads),
                           kCapacity,
                           k,
                           test_random_between(random, 1, 40),
                           (kvevict_dtype)test_random_below(random, 4),
                           test_random_below(random, 40),
                           test_random_below(random, 3)};
}

static void Try(test_layout from, test_layout to, kvevict_dtype k,
                test_random* random) {
  trial* t = Draw(RandomSpec(from, k, random), to, random);
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_compact_workspace(test_context(), &t->move, 1, &size));
  EXPECT(size.best_bytes == 0, "%zu bytes", size.best_bytes);
  EXPECT_OK(kvevict_compact(test_context(), &t->move, 1, NULL, 0, NULL));
  ExpectMoved(t, test_layout_name(from));
  Destroy(t);
}

Test(compact_to, tails_of_every_layout_and_dtype) {
  test_random random = test_random_start("compact tails");
  for (int round = 0; round < 24; ++round) {
    for (int from = 0; from < TEST_N_LAYOUTS; ++from) {
      for (kvevict_dtype k = KVEVICT_DTYPE_OPAQUE; k <= KVEVICT_DTYPE_BF16;
           ++k) {
        Try((test_layout)from, TEST_N_LAYOUTS, k, &random);
      }
    }
  }
}

Test(compact_to, every_layout_and_dtype_to_every_layout) {
  test_random random = test_random_start("compact to another cache");
  for (int round = 0; round < 4; ++round) {
    for (int from = 0; from < TEST_N_LAYOUTS; ++from) {
      for (int to = 0; to < TEST_N_LAYOUTS; ++to) {
        for (kvevict_dtype k = KVEVICT_DTYPE_OPAQUE; k <= KVEVICT_DTYPE_BF16;
             ++k) {
          Try((test_layout)from, (test_layout)to, k, &random);
        }
      }
    }
  }
}

Test(compact_to, long_rows_go_by_runs) {
  test_random random = test_random_start("compact long rows");
  for (int round = 0; round < 40; ++round) {
    const test_layout kFlat[] = {TEST_TOKEN_MAJOR, TEST_HEAD_MAJOR,
                                 TEST_PAGED_16, TEST_PADDED};
    const test_cache_spec spec = {
        kFlat[round % 4],  1,    kCapacity, KVEVICT_DTYPE_OPAQUE, 4096,
        KVEVICT_DTYPE_F32, 1100, 0};
    const test_layout to[] = {TEST_HEAD_MAJOR, TEST_TOKEN_MAJOR, TEST_PADDED,
                              TEST_N_LAYOUTS};
    trial* t = Draw(spec, to[round / 4 % 4], &random);
    EXPECT_OK(kvevict_compact(test_context(), &t->move, 1, NULL, 0, NULL));
    ExpectMoved(t, "long rows");
    Destroy(t);
  }
}

Test(compact_to, layers_go_together_whatever_each_does) {
  test_random random = test_random_start("compact to, layers");
  for (uint32_t round = 0; round < 120; ++round) {
    test_runner runner;
    kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
    test_runner_install(&runner, 1 + round % 4, &options);
    kvevict_context* with = NULL;
    EXPECT_OK(kvevict_context_create(&options, &with));
    trial* all[6];
    kvevict_move moves[6];
    for (int l = 0; l < 6; ++l) {
      const uint32_t from = test_random_below(&random, TEST_N_LAYOUTS);
      const uint32_t to = test_random_below(&random, 2 * TEST_N_LAYOUTS);
      all[l] = Draw(RandomSpec((test_layout)from, KVEVICT_DTYPE_F16, &random),
                    (test_layout)(to < TEST_N_LAYOUTS ? to : TEST_N_LAYOUTS),
                    &random);
      moves[l] = all[l]->move;
    }
    EXPECT_OK(kvevict_compact(with, moves, 6, NULL, 0, NULL));
    for (int l = 0; l < 6; ++l) {
      ExpectMoved(all[l], "together");
      Destroy(all[l]);
    }
    kvevict_context_destroy(with);
  }
}

/* ---- Memory that caches share ---- */

/* Two sequences of one pool whose tables begin with the same n_shared blocks. */
typedef struct pool {
  test_cache *cache, *before;
  int32_t tables[2][6];
  kvevict_view views[2];
  kvevict_keep_lists keep;
  kvevict_move moves[2];
} pool;

static int32_t kTail[2] = {34, 39};

static void MakePool(pool* p, uint32_t n_shared, test_random* random) {
  const test_cache_spec spec = {
      TEST_PAGED_16, 2, 12 * 16, KVEVICT_DTYPE_F32, 4, KVEVICT_DTYPE_F32, 4, 0};
  p->cache = test_cache_create(&spec, random);
  p->before = test_cache_clone(p->cache);
  p->keep = test_lists(kTail, 2, 1);
  for (int s = 0; s < 2; ++s) {
    for (uint32_t i = 0; i < 6; ++i) {
      const uint32_t own = i < n_shared ? 0 : 6 * (uint32_t)s;
      p->tables[s][i] = p->cache->block_table[own + i];
    }
    p->views[s] = p->cache->view;
    p->views[s].block_table = p->tables[s];
    p->views[s].block_table_len = 6;
    p->moves[s] = (kvevict_move)KVEVICT_MOVE_INIT;
    p->moves[s].n_tokens = 40;
    p->moves[s].view = &p->views[s];
    p->moves[s].keep = &p->keep;
    p->moves[s].first_slot = 32;
  }
}

static void DestroyPool(pool* p) {
  test_cache_destroy(p->cache);
  test_cache_destroy(p->before);
}

static float Element(const test_cache* c, const kvevict_view* view,
                     uint32_t slot, uint32_t head) {
  float value;
  memcpy(&value, oracle_row_byte(view, &view->k, slot, head, 0), sizeof value);
  (void)c;
  return value;
}

Test(compact_to, sequences_that_share_a_prefix_compact_their_tails) {
  test_random random = {21};
  pool p;
  MakePool(&p, 2, &random);
  float wanted[2][2];
  for (int s = 0; s < 2; ++s) {
    for (uint32_t i = 0; i < 2; ++i) {
      wanted[s][i] = Element(p.cache, &p.views[s], (uint32_t)kTail[i], 1);
    }
  }
  EXPECT_OK(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL));
  for (int s = 0; s < 2; ++s) {
    for (uint32_t i = 0; i < 2; ++i) {
      cr_assert(Element(p.cache, &p.views[s], 32 + i, 1) == wanted[s][i]);
    }
  }
  DestroyPool(&p);
  /* Both would write a third block. */
  MakePool(&p, 3, &random);
  p.moves[1].n_tokens = 41;
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL),
                 "moves[0].k of 40 tokens", "moves[1].k of 41 tokens",
                 "overlap");
  /* Moving whole caches would write the shared blocks twice. */
  p.tables[1][2] = p.cache->block_table[8];
  EXPECT_OK(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL));
  p.moves[0].first_slot = p.moves[1].first_slot = 31;
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL),
                 "overlap");
  DestroyPool(&p);
}

Test(compact_to, blocks_of_the_same_pool_are_a_destination) {
  test_random random = {22};
  pool p;
  MakePool(&p, 0, &random);
  const float wanted = Element(p.cache, &p.views[0], 39, 0);
  p.moves[0].destination = &p.views[1];
  EXPECT_OK(kvevict_compact(test_context(), p.moves, 1, NULL, 0, NULL));
  cr_assert(Element(p.cache, &p.views[1], 33, 0) == wanted);
  p.tables[1][2] = p.tables[0][1]; /* where rows are read */
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 1, NULL, 0, NULL),
                 "moves[0].k of 40 tokens",
                 "moves[0].destination.k of 34 tokens", "overlap");
  p.tables[1][2] = -1;
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 1, NULL, 0, NULL),
                 "destination: block_table[2] -1 < 0");
  DestroyPool(&p);
}

/* Keeps 4 of the 32 nodes of a tree behind a prefix, in all layers at once. */
Test(compact_to, the_accepted_nodes_of_a_tree) {
  enum { kLayers = 32, kPrefix = 100, kNodes = 32, kAccepted = 4 };
  test_random random = test_random_start("compact tree");
  int32_t accepted[kAccepted];
  test_random_ascending(&random, accepted, kAccepted, kNodes);
  for (int i = 0; i < kAccepted; ++i) accepted[i] += kPrefix;
  const kvevict_keep_lists keep = test_lists(accepted, kAccepted, 1);
  test_cache *caches[kLayers], *expected[kLayers], *before[kLayers];
  kvevict_move moves[kLayers];
  for (int l = 0; l < kLayers; ++l) {
    const test_cache_spec spec = {(test_layout)(l % TEST_N_LAYOUTS),
                                  2,
                                  kPrefix + kNodes + 5,
                                  KVEVICT_DTYPE_BF16,
                                  8,
                                  KVEVICT_DTYPE_F16,
                                  8,
                                  (uint32_t)l % 3};
    caches[l] = test_cache_create(&spec, &random);
    expected[l] = test_cache_clone(caches[l]);
    before[l] = test_cache_clone(caches[l]);
    oracle_compact_to(&expected[l]->view, &expected[l]->view, kPrefix, &keep);
    moves[l] = (kvevict_move)KVEVICT_MOVE_INIT;
    moves[l].n_tokens = kPrefix + kNodes;
    moves[l].view = &caches[l]->view;
    moves[l].keep = &keep;
    moves[l].first_slot = kPrefix;
  }
  EXPECT_OK(kvevict_compact(test_context(), moves, kLayers, NULL, 0, NULL));
  for (int l = 0; l < kLayers; ++l) {
    test_expect_same_rows(caches[l], expected[l], kPrefix + kAccepted, "tree");
    test_expect_same_outside(caches[l], before[l], kPrefix, kPrefix + kNodes,
                             "tree");
    test_cache_destroy(caches[l]);
    test_cache_destroy(expected[l]);
    test_cache_destroy(before[l]);
  }
}

/* ---- Errors ---- */

/* `change` to a valid call makes it fail; no byte moves. */
#define EXPECT_BREAKS(change, ...)                                           \
  do {                                                                       \
    test_random random = {6};                                                \
    test_cache_spec spec = {TEST_PAGED_16,     2, 40, KVEVICT_DTYPE_F32, 4,  \
                            KVEVICT_DTYPE_F32, 4, 2};                        \
    test_cache* cache = test_cache_create(&spec, &random);                   \
    spec.layout = TEST_TOKEN_MAJOR;                                          \
    test_cache* other = test_cache_create(&spec, &random);                   \
    test_cache* before = test_cache_clone(cache);                            \
    test_cache* other_before = test_cache_clone(other);                      \
    int32_t keep_array[8] = {11, 13, 20, 39, 10, 12, 25, 38};                \
    kvevict_view view = cache->view, to = other->view;                       \
    kvevict_keep_lists keep = test_lists(keep_array, 4, 2);                  \
    kvevict_move move = KVEVICT_MOVE_INIT;                                   \
    move.n_tokens = 40;                                                      \
    move.first_slot = 10;                                                    \
    move.view = &view;                                                       \
    move.keep = &keep;                                                       \
    change;                                                                  \
    EXPECT_INVALID(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL), \
                   __VA_ARGS__);                                             \
    test_expect_same_bytes(cache, before, #change);                          \
    test_expect_same_bytes(other, other_before, #change);                    \
    (void)to;                                                                \
    test_cache_destroy(cache);                                               \
    test_cache_destroy(other);                                               \
    test_cache_destroy(before);                                              \
    test_cache_destroy(other_before);                                        \
  } while (0)

#define EXPECT_BREAKS_TO(change, ...) \
  EXPECT_BREAKS((move.destination = &to, change), __VA_ARGS__)

Test(compact_to, first_slots_that_cannot_be_are_errors) {
  EXPECT_BREAKS(move.first_slot = 12, "keep[0][0] 11",
                "not in [12, n_tokens 40)");
  EXPECT_BREAKS(keep_array[4] = 9, "keep[1][0] 9", "[10, n_tokens 40)");
  EXPECT_BREAKS(move.first_slot = 37, "first_slot 37 + keep.count 4",
                "n_tokens 40");
  EXPECT_BREAKS((move.first_slot = 41, keep.count = 0),
                "first_slot 41 + keep.count 0", "n_tokens 40");
  EXPECT_BREAKS(move.first_slot = UINT32_MAX, "first_slot 4294967295",
                "n_tokens 40");
  EXPECT_BREAKS(move.merge = KVEVICT_MERGE_PIVOT, "merge", "first_slot 10");
}

Test(compact_to, destinations_that_cannot_be_are_errors) {
  EXPECT_BREAKS_TO(to.struct_size = 8, "destination.struct_size", "8");
  EXPECT_BREAKS_TO(to.n_kv_heads = 1, "destination: n_kv_heads 1", "2");
  EXPECT_BREAKS_TO(to.n_companions = 1, "destination: n_companions 1", "2");
  EXPECT_BREAKS_TO(to.k.head_dim = 3, "destination: k.dtype f32", "head_dim 3",
                   "the view's f32, 4, 0");
  EXPECT_BREAKS_TO(to.v.head_dim = 3, "destination: v.dtype f32", "head_dim 3");
  EXPECT_BREAKS_TO((to.v = (kvevict_plane)KVEVICT_PLANE_INIT),
                   "destination: v.data is 0, but not the view's");
  EXPECT_BREAKS_TO((view.v = (kvevict_plane)KVEVICT_PLANE_INIT),
                   "destination: v.data is 0 in the view alone");
  EXPECT_BREAKS_TO(other->companions[1].row_bytes = 4,
                   "destination: companions[1]: companion.dtype opaque",
                   "row_bytes 4", "opaque, 0, 5");
  EXPECT_BREAKS_TO(to.k.token_stride_bytes = 3, "destination: k", "overlap");
  EXPECT_BREAKS_TO(to.block_size = 1, "destination: block_table_len 0", "14");
  EXPECT_BREAKS_TO(move.first_slot = INT32_MAX,
                   "first_slot 2147483647 + keep.count 4 > 2147483647");
  EXPECT_BREAKS_TO((move.first_slot = 0, move.merge = KVEVICT_MERGE_PIVOT),
                   "merge", "destination");
  EXPECT_BREAKS_TO(move.destination = &view, "destination is the view itself",
                   "NULL");
  EXPECT_BREAKS_TO(
      (to.k = view.k, to.v = view.v, to.companions = view.companions,
       to.block_size = 16, to.block_table = view.block_table,
       to.block_table_len = view.block_table_len),
      "destination is the view itself");
  EXPECT_BREAKS_TO(keep_array[0] = -1, "keep[0][0] -1");
}

Test(compact_to, caches_of_one_call_that_overlap_are_refused) {
  test_random random = {31};
  const test_cache_spec spec = {TEST_TOKEN_MAJOR,  2, 40, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 0};
  test_cache* caches[3];
  kvevict_move moves[2];
  int32_t list[2] = {35, 39};
  const kvevict_keep_lists keep = test_lists(list, 2, 1);
  for (int i = 0; i < 3; ++i) caches[i] = test_cache_create(&spec, &random);
  for (int i = 0; i < 2; ++i) {
    moves[i] = (kvevict_move)KVEVICT_MOVE_INIT;
    moves[i].n_tokens = 40;
    moves[i].view = &caches[i]->view;
    moves[i].keep = &keep;
    moves[i].destination = &caches[2]->view;
  }
  test_cache* before = test_cache_clone(caches[2]);
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "moves[1].destination is moves[0].destination again");
  moves[1].first_slot = 1;
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "moves[0].destination.k of 2 tokens",
                 "moves[1].destination.k of 3 tokens", "overlap");
  moves[0].destination = moves[1].view;
  moves[1].destination = NULL;
  moves[1].first_slot = 0;
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "moves[0].destination.k of 2 tokens",
                 "moves[1].k of 40 tokens", "overlap");
  test_expect_same_bytes(caches[2], before, "refused");
  /* Adjacent slots do not overlap. */
  moves[1].first_slot = 2;
  EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
  moves[0].destination = moves[1].destination = &caches[2]->view;
  EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
  for (int i = 0; i < 3; ++i) test_cache_destroy(caches[i]);
  test_cache_destroy(before);
}

Test(compact_to, the_workspace_query_checks_as_the_call_does) {
  test_random random = {32};
  const test_cache_spec spec = {TEST_PAGED_16,     2, 40, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 0};
  test_cache* cache = test_cache_create(&spec, &random);
  test_cache* to = test_cache_create(&spec, &random);
  const kvevict_keep_lists keep = test_lists(NULL, 4, 1);
  kvevict_move move = KVEVICT_MOVE_INIT;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  move.view = &cache->view;
  move.keep = &keep;
  move.first_slot = 30;
  EXPECT_OK(kvevict_compact_workspace(test_context(), &move, 1, &size));
  move.first_slot = 60;
  EXPECT_INVALID(kvevict_compact_workspace(test_context(), &move, 1, &size),
                 "view: block_table_len 3", "64 tokens");
  move.first_slot = INT32_MAX;
  EXPECT_INVALID(kvevict_compact_workspace(test_context(), &move, 1, &size),
                 "first_slot + keep.count 2147483651 > 2147483647");
  move.destination = &to->view;
  move.first_slot = 30;
  EXPECT_OK(kvevict_compact_workspace(test_context(), &move, 1, &size));
  move.first_slot = 60;
  EXPECT_INVALID(kvevict_compact_workspace(test_context(), &move, 1, &size),
                 "destination: block_table_len 3", "64 tokens");
  test_cache_destroy(cache);
  test_cache_destroy(to);
}

Test(compact_to, a_reordering_has_neither) {
  test_random random = {33};
  const test_cache_spec spec = {TEST_TOKEN_MAJOR,  2, 40, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 0};
  test_cache* cache = test_cache_create(&spec, &random);
  test_cache* to = test_cache_create(&spec, &random);
  int32_t list[2] = {35, 39};
  const kvevict_keep_lists keep = test_lists(list, 2, 1);
  kvevict_move move = KVEVICT_MOVE_INIT;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  uint8_t memory[64];
  move.n_tokens = 40;
  move.view = &cache->view;
  move.keep = &keep;
  move.first_slot = 3;
  EXPECT_INVALID(kvevict_reorder(test_context(), &move, 1, memory, 64, NULL),
                 "moves[0]: first_slot 3");
  EXPECT_INVALID(kvevict_reorder_workspace(test_context(), &move, 1, &size),
                 "moves[0]: first_slot 3");
  move.first_slot = 0;
  move.destination = &to->view;
  EXPECT_INVALID(kvevict_reorder(test_context(), &move, 1, memory, 64, NULL),
                 "moves[0]: destination is not NULL");
  EXPECT_INVALID(kvevict_reorder_workspace(test_context(), &move, 1, &size),
                 "moves[0]: destination is not NULL");
  test_cache_destroy(cache);
  test_cache_destroy(to);
}
