/* A library of a second release and callers of the first: older_structs.inc says
 * which fields came in between. Every struct is passed as it was then, in memory of
 * just that size. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/kvevict.h"
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

static kvevict_geometry* Geometry(void) {
  kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
  g.n_layers = kLayers;
  g.n_q_heads = g.n_kv_heads = kHeads;
  g.k_head_dim = g.v_head_dim = kDim;
  g.max_tokens = kTokens;
  g.softmax_scale = -1.0f; /* is cut off */
  return OLDER(kvevict_geometry, softmax_scale, g);
}

static kvevict_plan* Plan(kvevict_policy_kind kind, double budget) {
  kvevict_policy whole;
  EXPECT_OK(kvevict_policy_init(&whole, sizeof whole, kind));
  whole.budget = budget;
  whole.n_sink = 2;
  whole.obs_window = 4;
  whole.pyramid_alpha = -1.0; /* is cut off */
  kvevict_policy* policy = OLDER(kvevict_policy, layer_split, whole);
  kvevict_geometry* geometry = Geometry();
  kvevict_context* context = Context();
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(context, geometry, policy, NULL, &plan));
  kvevict_context_destroy(context);
  free(geometry);
  free(policy);
  return plan;
}

TestSuite(older_callers);

Test(older_callers, lack_fields_that_have_their_defaults) {
  kvevict_plan* plan = Plan(KVEVICT_POLICY_PYRAMIDKV, 24);
  uint32_t budgets[kLayers], expected[kLayers];
  EXPECT_OK(kvevict_plan_layer_budgets(plan, kTokens, budgets, kLayers));
  kvevict_policy whole;
  EXPECT_OK(
      kvevict_policy_init(&whole, sizeof whole, KVEVICT_POLICY_PYRAMIDKV));
  whole.budget = 24;
  whole.n_sink = 2;
  whole.obs_window = 4;
  EXPECT_OK(kvevict_policy_layer_budgets(&whole, kTokens, expected, kLayers));
  cr_expect(memcmp(budgets, expected, sizeof budgets) == 0);
  cr_expect(budgets[0] > budgets[2], "pyramidkv's own split is the default");
  kvevict_plan_destroy(plan);
}

Test(older_callers, evict_with_older_views_options_and_reports) {
  kvevict_plan* plan = Plan(KVEVICT_POLICY_STREAMING_LLM, 24);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(plan, &sequence));
  size_t bytes = 0;
  EXPECT_OK(
      kvevict_plan_workspace_bytes(plan, KVEVICT_OPERATION_EVICT, 0, &bytes));
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
    view.n_companions = 7; /* is cut off */
    kvevict_view* older = OLDER(kvevict_view, companions, view);
    memcpy(views + (size_t)l * view_size, older, view_size);
    free(older);
  }
  const kvevict_evict_options whole_options = KVEVICT_EVICT_OPTIONS_INIT;
  kvevict_evict_options* options =
      OLDER(kvevict_evict_options, scores, whole_options);
  kvevict_evict_report whole_report;
  memset(&whole_report, 0xA5, sizeof whole_report);
  kvevict_evict_report* report =
      OLDER(kvevict_evict_report, blocks_freed, whole_report);
  EXPECT_OK(kvevict_sequence_append(sequence, kTokens));
  EXPECT_OK(kvevict_sequence_evict(sequence, (const kvevict_view*)views,
                                   kLayers, options, workspace, bytes, report));
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
  free(report);
  free(options);
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
  union {
    kvevict_policy policy;
    uint8_t bytes[sizeof(kvevict_policy)];
  } u;
  memset(&u, 0xA5, sizeof u);
  const size_t older = offsetof(kvevict_policy, layer_split);
  EXPECT_OK(kvevict_policy_init(&u.policy, older, KVEVICT_POLICY_PYRAMIDKV));
  cr_expect_eq(u.policy.n_sink, 4u);
  for (size_t i = older; i < sizeof u; ++i) cr_expect_eq(u.bytes[i], 0xA5);
}

Test(older_callers, are_no_older_than_the_first_release) {
  kvevict_policy policy;
  const size_t first = offsetof(kvevict_policy, layer_split);
  EXPECT_INVALID(kvevict_policy_init(&policy, first - 1, KVEVICT_POLICY_NONE),
                 "struct_size");
  EXPECT_OK(kvevict_policy_init(&policy, first, KVEVICT_POLICY_NONE));
  policy.struct_size = (uint32_t)first - 1;
  EXPECT_INVALID(kvevict_policy_validate(&policy), "struct_size");
}
