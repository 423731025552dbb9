/* Views of groups, blocks with addresses, rings and shared blocks. Layers with one
 * cache are told apart from layers with two. */
#include <stdlib.h>

#include "kvevict/edit.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/undo.h"

enum { kBlocks = 4, kBlock = 4 };

/* These addresses are not read. */
static uint64_t addresses[kBlocks];
static int32_t table[kBlocks - 1];

/* Pages hold keys, then values: f32, 2 heads of 8 elements. */
static kvevict_view Pages(void) {
  for (int i = 0; i < kBlocks; ++i) addresses[i] = 0x10000u * (i + 1u);
  addresses[1] = 0;
  table[0] = 3, table[1] = 0, table[2] = 2;
  kvevict_view view = {.struct_size = sizeof view, .n_kv_heads = 2};
  view.k.address_table = (uint64_t)(uintptr_t)addresses;
  view.k.address_table_len = kBlocks;
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = 8;
  view.k.head_stride_bytes = 32;
  view.k.token_stride_bytes = 64;
  view.v = view.k;
  view.v.data = 64 * kBlock;
  view.block_size = kBlock;
  view.block_table = table;
  view.block_table_len = kBlocks - 1;
  return view;
}

/* `change` to a valid view makes it invalid for 12 tokens, and the message says
 * why. */
#define EXPECT_BREAKS(change, ...)                                 \
  do {                                                             \
    kvevict_view view = Pages();                                   \
    EXPECT_OK(kvevict_view_validate(&view, 12));                   \
    change;                                                        \
    EXPECT_INVALID(kvevict_view_validate(&view, 12), __VA_ARGS__); \
  } while (0)

Test(view_blocks, addresses_must_be_where_tokens_are) {
  EXPECT_BREAKS(addresses[2] = 0, "k.address_table[2] is 0", "block 2");
  EXPECT_BREAKS(table[1] = 1, "k.address_table[1] is 0", "block 1");
  EXPECT_BREAKS(table[1] = 4, "block_table[1] 4 >= k.address_table_len 4");
  EXPECT_BREAKS(table[1] = -1, "block_table[1] -1 < 0");
  EXPECT_BREAKS(view.v.address_table_len = 3, "v.address_table_len 3");
  EXPECT_BREAKS(view.k.address_table_len = 1u << 31, "address_table_len");
  EXPECT_BREAKS(view.k.address_table += 4, "address_table", "aligned to 8");
  EXPECT_BREAKS(view.v.address_table = 0, "v.address_table is 0",
                "address_table_len is 4");
  EXPECT_BREAKS(view.k.block_stride_bytes = 8, "block_stride_bytes 8");
  EXPECT_BREAKS(addresses[3] = UINT64_MAX - 100, "k.address_table[3]",
                "64-bit");
  EXPECT_BREAKS(view.v.data = 64, "k.data", "v.data 0x40", "overlap");
  EXPECT_BREAKS(view.k.token_stride_bytes = 63, "k: rows", "overlap");
  EXPECT_BREAKS(
      (view.block_size = 0, view.block_table = NULL, view.block_table_len = 0),
      "k.address_table given, but block_size is 0");
  kvevict_view view = Pages(); /* empty blocks are not read */
  table[2] = 77;
  EXPECT_OK(kvevict_view_validate(&view, 8));
  view.v.data = view.k.data; /* pages of its own */
  uint64_t others[kBlocks];
  memcpy(others, addresses, sizeof others);
  view.v.address_table = (uint64_t)(uintptr_t)others;
  EXPECT_OK(kvevict_view_validate(&view, 8));
}

Test(view_blocks, without_ids_entries_are_in_the_order_of_tokens) {
  EXPECT_BREAKS(view.block_table = NULL, "block_table is NULL",
                "block_table_len is 3");
  EXPECT_BREAKS((view.block_table = NULL, view.block_table_len = 0),
                "k.address_table[1] is 0");
  EXPECT_BREAKS((view.block_table = NULL, view.block_table_len = 0,
                 view.k.address_table_len = 2),
                "k.address_table_len 2 < 3 blocks");
  EXPECT_BREAKS((view.block_table = NULL, view.v.address_table = 0,
                 view.v.address_table_len = 0, view.v.data = 64),
                "block_table is NULL, but block_size is 4");
  kvevict_view view = Pages();
  view.block_table = NULL;
  view.block_table_len = 0;
  EXPECT_OK(kvevict_view_validate(&view, 4));
  addresses[1] = 0x90000;
  EXPECT_OK(kvevict_view_validate(&view, 16));
  EXPECT_INVALID(kvevict_view_validate(&view, 17), "address_table_len 4 < 5");
  /* Each head has its own pages. */
  view.k.head_stride_bytes = view.v.head_stride_bytes = 0;
  view.block_table_head_stride = 2;
  EXPECT_OK(kvevict_view_validate(&view, 8));
  EXPECT_INVALID(kvevict_view_validate(&view, 9), "block_table_head_stride 2");
}

Test(view_blocks, groups_divide_rows) {
  EXPECT_BREAKS(view.k.group_elems = 3, "k.group_elems 3", "head_dim 8");
  EXPECT_BREAKS(view.k.group_stride_bytes = 16, "group_stride_bytes 16",
                "group_elems is 0");
  EXPECT_BREAKS((view.k.group_elems = 4, view.k.element_stride_bytes = 8,
                 view.k.group_stride_bytes = 4096),
                "element_stride_bytes 8", "packed");
  EXPECT_BREAKS((view.k.group_elems = 4, view.k.group_stride_bytes = 15),
                "k:", "overlap", "group_stride_bytes 15");
  EXPECT_BREAKS((view.k.dtype = KVEVICT_DTYPE_OPAQUE, view.k.head_dim = 0,
                 view.k.row_bytes = 32, view.k.group_elems = 4),
                "k.group_elems 4", "head_dim 0");
  kvevict_view view = Pages(); /* [H, 2, tokens, 4] */
  view.k.group_elems = 4;
  view.k.token_stride_bytes = 16;
  view.k.group_stride_bytes = 16 * kBlock;
  view.k.head_stride_bytes = 32 * kBlock;
  EXPECT_OK(kvevict_view_validate(&view, 12));
  view.k.element_stride_bytes = 4;
  EXPECT_OK(kvevict_view_validate(&view, 12));
  view.k.group_stride_bytes = 32 * kBlock; /* over other rows */
  EXPECT_INVALID(kvevict_view_validate(&view, 12), "k:", "overlap");
}

Test(view_blocks, rings_hold_their_tokens) {
  EXPECT_BREAKS(view.ring_first = 1, "ring_first 1, but ring_slots is 0");
  EXPECT_BREAKS((view.ring_slots = 12, view.ring_first = 12),
                "ring_first 12 >= ring_slots 12");
  EXPECT_BREAKS(view.ring_slots = 11, "12 tokens > ring_slots 11");
  EXPECT_BREAKS(view.ring_slots = UINT32_MAX, "ring_slots 4294967295");
  EXPECT_BREAKS(view.ring_slots = 13, "block_table_len 3 < 4");
  EXPECT_BREAKS(view.first_recent = 1, "first_recent 1");
  kvevict_view view = Pages();
  view.ring_slots = 12;
  view.ring_first = 11;
  EXPECT_OK(kvevict_view_validate(&view, 1));
  table[2] = 1; /* a ring uses all its blocks */
  EXPECT_INVALID(kvevict_view_validate(&view, 1), "address_table[1] is 0");
  EXPECT_OK(kvevict_view_validate(&view, 0));
  /* It uses all of its rows, too. */
  kvevict_view rows = Pages();
  rows.block_size = 0;
  rows.block_table = NULL;
  rows.block_table_len = 0;
  rows.k.address_table = rows.v.address_table = 0;
  rows.k.address_table_len = rows.v.address_table_len = 0;
  rows.k.data = 0x10000;
  rows.v.data = 0x10000 + 12 * 64;
  rows.ring_slots = 12;
  EXPECT_OK(kvevict_view_validate(&rows, 2));
  rows.ring_slots = 13;
  EXPECT_INVALID(kvevict_view_validate(&rows, 2), "overlap");
}

/* ---- Blocks that others hold, too ---- */

static test_model* PagedModel(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.layout = TEST_PAGED_16;
  spec.n_layers = 2;
  return test_model_create(&spec, (test_random){3});
}

Test(view_blocks, shared_ones_are_not_written) {
  EXPECT_BREAKS((view.n_shared_blocks = 1, view.ring_slots = 12),
                "n_shared_blocks 1", "ring_slots is 12");
  EXPECT_BREAKS((view.n_shared_blocks = 1, view.block_size = 0,
                 view.block_table = NULL, view.block_table_len = 0),
                "n_shared_blocks 1, but block_size is 0");
  test_random random = {5};
  const test_cache_spec spec = {TEST_PAGED_16,     2, 64, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 1};
  test_cache* c = test_cache_create(&spec, &random);
  test_cache* to = test_cache_create(&spec, &random);
  test_cache* before = test_cache_clone(c);
  kvevict_context* const context = test_context();
  int32_t slots[2] = {33, 40};
  const kvevict_keep_lists keep = test_lists(slots, 2, 1);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.view = &c->view;
  move.keep = &keep;
  move.n_tokens = 64;
  c->view.n_shared_blocks = 2;
  EXPECT_INVALID(kvevict_compact(context, &move, 1, NULL, 0, NULL), "view",
                 "n_shared_blocks 2 of 16", "slot 0", "below 32");
  EXPECT_INVALID(kvevict_reorder(context, &move, 1, NULL, 0, NULL), "view",
                 "n_shared_blocks 2");
  move.first_slot = 31;
  EXPECT_INVALID(kvevict_compact(context, &move, 1, NULL, 0, NULL), "slot 31");
  test_expect_same_bytes(c, before, "refused");
  move.first_slot = 32;
  EXPECT_OK(kvevict_compact(context, &move, 1, NULL, 0, NULL));
  test_expect_same_outside(c, before, 32, 34, "a tail");
  move.first_slot = 0;
  move.destination = &to->view;
  EXPECT_OK(kvevict_compact(context, &move, 1, NULL, 0, NULL));
  to->view.n_shared_blocks = 1;
  EXPECT_INVALID(kvevict_compact(context, &move, 1, NULL, 0, NULL),
                 "destination: n_shared_blocks 1");
  test_cache_destroy(c);
  test_cache_destroy(to);
  test_cache_destroy(before);
}

Test(view_blocks, shared_ones_are_not_evicted_from) {
  test_model* m = PagedModel("knorm:budget=40");
  test_model_append(m, 40);
  m->views[1].n_shared_blocks = 1;
  EXPECT_OK(test_model_evict(m, NULL, NULL)); /* nothing goes */
  test_model_append(m, 41);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[1]: n_shared_blocks");
  EXPECT(test_model_stored(m, 0) == 81, "refused, but shorter");
  m->views[1].n_shared_blocks = 0;
  const test_lent lent = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, lent, NULL));
  m->views[0].n_shared_blocks = 1; /* forked since then */
  EXPECT_INVALID(test_undo(m, lent), "views[0]: n_shared_blocks 1");
  m->views[0].n_shared_blocks = 0;
  EXPECT_OK(test_undo(m, lent));
  test_lent_return(lent);
  test_model_check(m, "shared blocks");
  test_model_destroy(m);
}

/* ---- Layers with one cache ---- */

static test_model* ModelInPages(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.layout = TEST_PAGES_16;
  spec.n_layers = 2;
  return test_model_create(&spec, (test_random){4});
}

Test(view_blocks, a_cache_is_one_whatever_tables_say_so) {
  test_model* m = ModelInPages("knorm:budget=30");
  test_model_append(m, 90);
  /* The second layer has the first one's cache, by tables of its own. */
  const kvevict_view* first = &m->live[0]->view;
  const uint32_t n = first->k.address_table_len;
  uint64_t* copy = malloc(n * sizeof *copy);
  memcpy(copy, m->live[0]->addresses, n * sizeof *copy);
  m->views[1] = *first;
  m->views[1].k.address_table = m->views[1].v.address_table =
      (uint64_t)(uintptr_t)copy;
  kvevict_evict_report report = {.struct_size = sizeof report};
  EXPECT_OK(test_model_evict(m, NULL, &report));
  EXPECT(report.tokens_before == 90 && report.tokens_after == 30,
         "%llu to %llu tokens", (unsigned long long)report.tokens_before,
         (unsigned long long)report.tokens_after);
  int32_t positions[90];
  for (uint32_t h = 0; h < 2; ++h) { /* moved once */
    test_model_positions(m, 1, h, positions);
    for (uint32_t i = 0; i < 30; ++i) {
      EXPECT(test_cache_get(m->live[0], &first->k, i, h, 1) ==
                 test_cache_get(m->archive[0], &m->archive[0]->view.k,
                                (uint32_t)positions[i], h, 1),
             "head %u, slot %u", h, i);
    }
  }
  free(copy);
  test_model_destroy(m);
}

Test(view_blocks, unequal_rows_of_one_page_are_refused) {
  test_model* m = ModelInPages("knorm:budget=30");
  test_model_append(m, 90);
  m->views[1] = m->views[0];
  m->views[1].v.data += 4;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[0].k", "views[1].k",
                 "overlap, but are not the same");
  EXPECT(test_model_stored(m, 0) == 90, "refused, but shorter");
  test_model_destroy(m);
}
