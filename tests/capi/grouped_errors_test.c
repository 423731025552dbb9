/* Views of KIVI-style caches, moves and evictions that are refused. paged_test.c has
 * evictions, grouped_test.c moves. */
#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/grouped_rows.h"
#include "tests/capi/support/plan.h"

static test_plan* PlanOf(const test_grouped_spec* spec, const char* policy) {
  kvevict_layer_geometry layer =
      test_layer(2 * spec->n_heads, spec->n_heads, spec->dim, spec->dim);
  layer.k_dtype = layer.v_dtype = spec->dtype;
  const kvevict_geometry geometry = test_geometry(1, 100, &layer);
  return test_plan_create(policy, &geometry, KVEVICT_OPERATION_EVICT, 1);
}

static kvevict_status Evict(test_plan* plan, const kvevict_view* view,
                            uint32_t n, const kvevict_evict_options* options) {
  kvevict_sequence* sequence;
  EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, n, NULL));
  const kvevict_status status = kvevict_sequence_evict(
      sequence, view, 1, options, plan->workspace, plan->workspace_bytes, NULL);
  kvevict_sequence_destroy(sequence);
  return status;
}

static test_grouped* Small(test_random* random) {
  const test_grouped_spec spec = {.n_heads = 2,
                                  .dim = 64,
                                  .capacity = 96,
                                  .group = 8,
                                  .block_size = 16,
                                  .has_recent = true,
                                  .dtype = KVEVICT_DTYPE_U4,
                                  .scale = KVEVICT_DTYPE_F32,
                                  .minimum = KVEVICT_DTYPE_F32,
                                  .recent = KVEVICT_DTYPE_F16};
  test_grouped* c = test_grouped_create(&spec, random);
  c->view.first_recent = 40;
  test_grouped_fill(test_context(), c, 0, 48, random, true);
  EXPECT_OK(kvevict_view_validate(&c->view, 48));
  return c;
}

Test(grouped_errors, views_that_make_no_sense_are_refused) {
  test_random random = test_random_start("grouped errors");
  test_grouped* c = Small(&random);
#define EXPECT_REFUSED(change, ...)                                   \
  do {                                                                \
    const test_grouped kept = *c;                                     \
    change;                                                           \
    EXPECT_INVALID(kvevict_view_validate(&c->view, 48), __VA_ARGS__); \
    *c = kept;                                                        \
  } while (0)
  kvevict_plane* scale = &c->companions[0];
  kvevict_plane* recent = &c->companions[4];
  EXPECT_REFUSED(c->view.k.group_tokens = 8, "k.group_tokens 8");
  EXPECT_REFUSED(scale->group_tokens = 257, "group_tokens 257 > 256");
  EXPECT_REFUSED(scale->group_tokens = 12, "group_tokens 12", "block_size 16");
  EXPECT_REFUSED(scale->group_tokens = 16, "key_scale is 16", "key_minimum 8");
  EXPECT_REFUSED(scale->head_dim = 1, "head_dim 1", "key_scale", "64");
  EXPECT_REFUSED(scale->dtype = KVEVICT_DTYPE_U8, "dtype u8", "key_scale");
  EXPECT_REFUSED(scale->element_stride_bytes = 8, "element_stride_bytes 8");
  EXPECT_REFUSED(
      (c->view.k.dtype = KVEVICT_DTYPE_FP8_E4M3, c->view.k.head_dim = 32),
      "group_tokens 8", "fp8_e4m3");
  EXPECT_REFUSED(recent->group_tokens = 8, "group_tokens 8", "key_recent");
  EXPECT_REFUSED(recent->head_dim = 32, "head_dim 32", "key_recent");
  EXPECT_REFUSED(recent->block_stride_bytes = 8, "block_stride_bytes 8");
  EXPECT_REFUSED(recent->token_stride_bytes = 0, "overlap");
  EXPECT_REFUSED(recent->data = c->view.k.data +
                                (uint64_t)c->table[0] *
                                    (uint64_t)c->view.k.block_stride_bytes,
                 "overlap");
  EXPECT_REFUSED(c->view.n_companions = 5, "k is recent, but v is not");
  EXPECT_REFUSED(c->view.n_companions = 4, "first_recent 40");
  EXPECT_REFUSED((c->view.block_size = 0, c->view.block_table = NULL,
                  c->view.block_table_len = 0, c->view.ring_slots = 96),
                 "ring_slots 96");
#undef EXPECT_REFUSED
  test_grouped_destroy(c);
}

Test(grouped_errors, rows_do_not_move_one_by_one) {
  test_random random = test_random_start("grouped refused");
  kvevict_context* const context = test_context();
  test_grouped* c = Small(&random);
  test_grouped* before = test_grouped_clone(c);
  int32_t slots[48];
  for (int i = 0; i < 48; ++i) slots[i] = i;
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.count = keep.list_stride = 47;
  keep.slots = slots;
  keep.slots_len = 48;
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = 48;
  move.view = &c->view;
  move.keep = &keep;
  EXPECT_INVALID(kvevict_compact(context, &move, 1, NULL, 0, NULL), "keep[0]",
                 "47 slots", "the 8 from first_recent 40");
  const uint32_t counts[2] = {48, 47};
  move.token_counts = counts;
  EXPECT_INVALID(kvevict_compact(context, &move, 1, NULL, 0, NULL), "recent",
                 "different numbers");
  move.token_counts = NULL;
  EXPECT_FAILS(kvevict_reorder(context, &move, 1, NULL, 0, NULL),
               KVEVICT_ERROR_UNSUPPORTED,
               kvevict_reason_text(KVEVICT_REASON_TOKEN_GROUPS));
  test_plan* plan = PlanOf(&c->spec, "knorm:budget=30");
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  uint8_t undo[64];
  options.undo = undo;
  options.undo_bytes = sizeof undo;
  EXPECT_FAILS(Evict(plan, &c->view, 48, &options), KVEVICT_ERROR_UNSUPPORTED,
               "undo", "views[0]",
               kvevict_reason_text(KVEVICT_REASON_TOKEN_GROUPS));
  test_plan_destroy(plan);
  plan = PlanOf(&c->spec, "snapkv:budget=30,window=4,split=cake");
  EXPECT_INVALID(Evict(plan, &c->view, 48, NULL),
                 "budget 8 < sink 4 + recent 8");
  test_plan_destroy(plan);
  plan = PlanOf(&c->spec, "streaming-llm:budget=10,sink=4");
  EXPECT_INVALID(Evict(plan, &c->view, 48, NULL), "budget 10", "recent 8");
  test_plan_destroy(plan);
  test_grouped_expect_same(c, before, 48, "refused");
  test_grouped_destroy(before);
  test_grouped_destroy(c);
}
