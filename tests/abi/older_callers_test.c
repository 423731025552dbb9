/* A library of a second release meets callers of the first: older_structs.inc says
 * which fields were added in between. Every struct is passed as it was then, in
 * memory of exactly that size. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"

/* The struct as it was when it ended before `field`. */
#define OLDER(T, field, value) \
  ((T*)Cut(&(value), offsetof(T, field), sizeof(T)))

static void* Cut(const void* whole, size_t size, size_t whole_size) {
  cr_assert_lt(size, whole_size);
  void* older = malloc(size);
  memcpy(older, whole, size);
  const uint32_t struct_size = (uint32_t)size;
  memcpy(older, &struct_size, sizeof struct_size);
  return older;
}

enum { kLayers = 3, kTokens = 60, kHeads = 2, kDim = 4 };
static float g_keys[kLayers][kTokens][kHeads][kDim];
static float g_values[kLayers][kTokens][kHeads][kDim];

static kvevict_context* Context(void) {
  const kvevict_context_options whole = KVEVICT_CONTEXT_OPTIONS_INIT;
  kvevict_context_options* older =
      OLDER(kvevict_context_options, cuda_context, whole);
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(older, &context));
  free(older);
  return context;
}

static kvevict_plan* Plan(const char* text) {
  kvevict_layer_geometry whole = KVEVICT_LAYER_GEOMETRY_INIT;
  whole.n_q_heads = whole.n_kv_heads = kHeads;
  whole.k_head_dim = whole.v_head_dim = kDim;
  whole.softmax_scale = -1.0f; /* cut off */
  kvevict_layer_geometry* layer = OLDER(kvevict_layer_geometry, v_dtype, whole);
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = kLayers;
  geometry.max_tokens = kTokens;
  geometry.layers = layer;
  geometry.layers_len = 1;
  kvevict_context* context = Context();
  kvevict_policy* policy = NULL;
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_policy_create(text, &policy));
  EXPECT_OK(kvevict_plan_create(context, &geometry, policy, NULL, &plan));
  kvevict_policy_destroy(policy);
  kvevict_context_destroy(context);
  free(layer);
  return plan;
}

TestSuite(older_callers);

Test(older_callers, evict_with_older_views_options_and_reports) {
  kvevict_plan* plan = Plan("streaming-llm:budget=24,sink=2");
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan, &sequence));
  const kvevict_workspace whole_size = KVEVICT_WORKSPACE_INIT;
  kvevict_workspace* size = OLDER(kvevict_workspace, best_bytes, whole_size);
  EXPECT_OK(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT, 0, size));
  const size_t bytes = size->least_bytes;
  void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  const size_t view_size = offsetof(kvevict_view, companions);
  uint8_t* views = malloc(kLayers * view_size);
  for (int l = 0; l < kLayers; ++l) {
    for (int t = 0; t < kTokens; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        for (int d = 0; d < kDim; ++d) {
          g_keys[l][t][h][d] = g_values[l][t][h][d] = (float)(t * 10 + l);
        }
      }
    }
    kvevict_view view = KVEVICT_VIEW_INIT;
    view.n_kv_heads = kHeads;
    view.k.data = (uintptr_t)g_keys[l];
    view.k.token_stride_bytes = sizeof g_keys[0][0];
    view.k.head_stride_bytes = sizeof g_keys[0][0][0];
    view.k.dtype = KVEVICT_DTYPE_F32;
    view.k.head_dim = kDim;
    view.v = view.k;
    view.v.data = (uintptr_t)g_values[l];
    view.n_companions = 7; /* cut off */
    kvevict_view* older = OLDER(kvevict_view, companions, view);
    memcpy(views + (size_t)l * view_size, older, view_size);
    free(older);
  }
  const kvevict_evict_options whole_options = KVEVICT_EVICT_OPTIONS_INIT;
  kvevict_evict_options* options =
      OLDER(kvevict_evict_options, inputs, whole_options);
  kvevict_evict_report whole_report;
  memset(&whole_report, 0xA5, sizeof whole_report);
  kvevict_evict_report* report =
      OLDER(kvevict_evict_report, blocks_freed, whole_report);
  /* A list of the first release only has the layer. */
  kvevict_list_report whole_list;
  memset(&whole_list, 0xA5, sizeof whole_list);
  const size_t list_size = offsetof(kvevict_list_report, tokens_before);
  uint8_t* lists = malloc(kLayers * list_size);
  for (int l = 0; l < kLayers; ++l) {
    kvevict_list_report* older =
        OLDER(kvevict_list_report, tokens_before, whole_list);
    memcpy(lists + (size_t)l * list_size, older, list_size);
    free(older);
  }
  EXPECT_OK(kvevict_sequence_append(sequence, kTokens, NULL));
  EXPECT_OK(kvevict_sequence_evict(sequence, (const kvevict_view*)views,
                                   kLayers, options, workspace, bytes, NULL));
  EXPECT_OK(kvevict_sequence_report(sequence, report,
                                    (kvevict_list_report*)lists, kLayers));
  for (uint32_t l = 0; l < kLayers; ++l) {
    uint32_t layer = 99;
    memcpy(&layer, lists + l * list_size + sizeof(uint32_t), sizeof layer);
    cr_expect_eq(layer, l);
  }
  cr_expect_eq(report->struct_size,
               offsetof(kvevict_evict_report, blocks_freed));
  cr_expect_eq(report->tokens_before, kLayers * kTokens);
  cr_expect_eq(report->tokens_after, kLayers * 24);
  for (int l = 0; l < kLayers; ++l) {
    for (int slot = 0; slot < 24; ++slot) {
      const int position = slot < 2 ? slot : kTokens - 24 + slot;
      cr_expect_eq(g_keys[l][slot][1][3], (float)(position * 10 + l));
      cr_expect_eq(g_values[l][slot][0][0], (float)(position * 10 + l));
    }
  }
  free(lists);
  free(report);
  free(options);
  free(size);
  free(views);
  free(workspace);
  kvevict_sequence_destroy(sequence);
  kvevict_plan_destroy(plan);
}

Test(older_callers, get_no_more_than_they_know) {
  kvevict_dtype_info whole;
  memset(&whole, 0xA5, sizeof whole);
  kvevict_dtype_info* info = OLDER(kvevict_dtype_info, can_rotate, whole);
  EXPECT_OK(kvevict_dtype_at(1, info));
  cr_expect_str_eq(info->name, "f32");
  cr_expect_eq(info->can_score, 1u);
  free(info);
}

Test(older_callers, are_no_older_than_the_first_release) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.struct_size = offsetof(kvevict_view, companions) - 1;
  EXPECT_INVALID(kvevict_view_validate(&view, 1), "struct_size");
}

/* Selects as the plan's policy says, which an older caller may be unable to. */
static void ExpectSelection(const char* policy_text, const char* text) {
  kvevict_plan* plan = Plan(policy_text);
  kvevict_select_options whole = KVEVICT_SELECT_OPTIONS_INIT;
  whole.n_tokens = 77;
  kvevict_select_options* options = OLDER(kvevict_select_options, tie, whole);
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  const kvevict_status status =
      kvevict_plan_selection(plan, 0, kTokens, 0, options, &keep);
  if (text == NULL) {
    EXPECT_OK(status);
    EXPECT(options->n_tokens == kTokens && keep.count == 24, "%s", policy_text);
  } else {
    EXPECT_INVALID(status, "options.struct_size", text);
    EXPECT(options->n_tokens == 77 && keep.count == 0, "%s: written",
           policy_text);
  }
  free(options);
  kvevict_plan_destroy(plan);
}

Test(older_callers, are_not_given_half_a_selection) {
  ExpectSelection("custom:sink=0,budget=24", NULL);
  ExpectSelection("custom:sink=0,budget=24,tie=higher", "48");
  /* These lists have no counts. */
  kvevict_plan* plan = Plan("custom:budget=24,sink=2");
  const kvevict_keep_lists whole = KVEVICT_KEEP_LISTS_INIT;
  kvevict_keep_lists* keep = OLDER(kvevict_keep_lists, count, whole);
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  EXPECT_INVALID(kvevict_plan_selection(plan, 0, kTokens, 0, &options, keep),
                 "keep.struct_size", "32");
  cr_expect(keep->n_lists == 0 && options.n_tokens == 0, "written");
  free(keep);
  kvevict_plan_destroy(plan);
}

/* Later fields of outputs are not written, and later fields of a move are not read. */
Test(older_callers, move_and_ask_as_they_did) {
  kvevict_plan* plan = Plan("custom:budget=24,sink=2");
  const kvevict_layer_info whole_info = {.struct_size = 7};
  kvevict_layer_info* info = OLDER(kvevict_layer_info, first_list, whole_info);
  EXPECT_OK(kvevict_plan_layer(plan, 1, info));
  cr_expect_eq(info->n_lists, kHeads);
  free(info);
  kvevict_plan_destroy(plan);

  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k.data = (uintptr_t)g_keys[0];
  view.k.token_stride_bytes = sizeof g_keys[0][0];
  view.k.head_stride_bytes = sizeof g_keys[0][0][0];
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = kDim;
  int32_t slots[2] = {3, 7};
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.n_lists = 1;
  keep.slots = slots;
  keep.slots_len = keep.count = 2;
  const uint32_t counts[kHeads] = {0, 0};
  kvevict_move whole = KVEVICT_MOVE_INIT;
  whole.n_tokens = kTokens;
  whole.view = &view;
  whole.keep = &keep;
  whole.token_counts = counts; /* cut off */
  kvevict_move* move = OLDER(kvevict_move, token_counts, whole);
  for (int t = 0; t < kTokens; ++t) g_keys[0][t][1][2] = (float)t;
  kvevict_context* context = Context();
  EXPECT_OK(kvevict_compact(context, move, 1, NULL, 0, NULL));
  cr_expect(g_keys[0][0][1][2] == 3.0f && g_keys[0][1][1][2] == 7.0f);
  kvevict_context_destroy(context);
  free(move);
}
