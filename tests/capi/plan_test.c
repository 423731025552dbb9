#include <math.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kMaxTokens = 1000 };

static kvevict_layer_geometry Layer(void) { return test_layer(8, 2, 64, 32); }

Test(plan, null_arguments_are_errors) {
  const kvevict_layer_geometry layer = Layer();
  const kvevict_geometry geometry = test_geometry(4, kMaxTokens, &layer);
  const kvevict_policy* policy = test_policy("snapkv:budget=100");
  kvevict_plan* plan;
  GUARD(plan);
  EXPECT_INVALID(kvevict_plan_create(NULL, &geometry, policy, NULL, &plan),
                 "context", "NULL");
  EXPECT_INVALID(kvevict_plan_create(test_context(), NULL, policy, NULL, &plan),
                 "geometry", "NULL");
  EXPECT_INVALID(
      kvevict_plan_create(test_context(), &geometry, NULL, NULL, &plan),
      "policy", "NULL");
  EXPECT_INVALID(
      kvevict_plan_create(test_context(), &geometry, policy, NULL, NULL),
      "out_plan", "NULL");
  EXPECT_UNTOUCHED(plan);
}

static kvevict_status CreateAndDestroy(const kvevict_geometry* geometry,
                                       const kvevict_policy* policy) {
  kvevict_plan* plan = NULL;
  const kvevict_status status =
      kvevict_plan_create(test_context(), geometry, policy, NULL, &plan);
  cr_assert((status == KVEVICT_OK) == (plan != NULL));
  kvevict_plan_destroy(plan);
  return status;
}

Test(plan, struct_sizes_are_checked) {
  GROWN(kvevict_layer_geometry) layer = {Layer()};
  GROWN(kvevict_geometry)
  geometry = {test_geometry(4, kMaxTokens, &layer.value)};
  const kvevict_policy* policy = test_policy("snapkv:budget=100");
  EXPECT_CHECKS_STRUCT_SIZE(layer, CreateAndDestroy(&geometry.value, policy));
  EXPECT_CHECKS_STRUCT_SIZE(geometry,
                            CreateAndDestroy(&geometry.value, policy));
}

/* `change` to a valid geometry g, its layers l or policy p makes the plan fail. */
#define EXPECT_BREAKS(change, ...)                         \
  do {                                                     \
    kvevict_layer_geometry l = Layer();                    \
    kvevict_geometry g = test_geometry(4, kMaxTokens, &l); \
    kvevict_policy* p = test_policy("snapkv:budget=100");  \
    EXPECT_OK(CreateAndDestroy(&g, p));                    \
    change;                                                \
    EXPECT_INVALID(CreateAndDestroy(&g, p), __VA_ARGS__);  \
  } while (0)

/* layers_test.c and score_errors_test.c have other mistakes in layers and RoPE. */
Test(plan, bad_geometries_are_errors) {
  EXPECT_BREAKS(g.n_layers = 0, "n_layers", "0");
  EXPECT_BREAKS(l.n_q_heads = 65536, "n_q_heads 65536", "65535");
  EXPECT_BREAKS((l.n_q_heads = l.n_kv_heads = 65536), "n_kv_heads 65536",
                "65535");
  EXPECT_BREAKS(l.n_q_heads = 1, "n_q_heads", "n_kv_heads");
  EXPECT_BREAKS(l.k_dtype = 99, "k_dtype", "99");
  EXPECT_BREAKS(l.v_dtype = -1, "v_dtype", "-1");
  EXPECT_BREAKS(l.k_dtype = KVEVICT_DTYPE_OPAQUE, "k_head_dim", "64");
  EXPECT_BREAKS((l.k_dtype = KVEVICT_DTYPE_Q8_0, l.k_head_dim = 65),
                "k_head_dim 65", "32", "q8_0");
  EXPECT_BREAKS((l.v_dtype = KVEVICT_DTYPE_U4, l.v_head_dim = 3),
                "v_head_dim 3", "2", "u4");
  EXPECT_BREAKS(g.max_tokens = 0, "max_tokens", "0");
  EXPECT_BREAKS(g.max_tokens = 2147483648u, "max_tokens", "2147483648");
  EXPECT_BREAKS(l.softmax_scale = -0.1234567f, "softmax_scale -0.1234567 ");
  EXPECT_BREAKS(l.softmax_scale = INFINITY, "softmax_scale", "inf");
}

Test(plan, bad_policies_are_errors) {
  EXPECT_BREAKS(EXPECT_OK(kvevict_policy_set_number(p, "budget", 36)),
                "sink 4 + window 32 >= budget 36");
}

Test(plan, workspaces_beyond_size_t_are_errors) {
  EXPECT_BREAKS((g.n_layers = UINT32_MAX, g.max_tokens = INT32_MAX), "n_layers",
                "4294967295");
  EXPECT_BREAKS((l.n_q_heads = l.n_kv_heads = UINT32_MAX), "heads",
                "4294967295");
  EXPECT_BREAKS(l.k_head_dim = UINT32_MAX, "k_head_dim", "4294967295");
}

static kvevict_plan* PlanOf(const kvevict_geometry* geometry,
                            const char* policy_text) {
  const kvevict_policy* policy = test_policy(policy_text);
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(test_context(), geometry, policy, NULL, &plan));
  return plan;
}

static kvevict_plan* Plan(const char* policy_text) {
  const kvevict_layer_geometry layer = Layer();
  const kvevict_geometry geometry = test_geometry(4, kMaxTokens, &layer);
  return PlanOf(&geometry, policy_text);
}

Test(plan, workspace_is_nothing_for_policy_none_and_grows_with_max_tokens) {
  const kvevict_operation kOperations[] = {KVEVICT_OPERATION_EVICT,
                                           KVEVICT_OPERATION_SCORE};
  kvevict_plan* none = Plan("none");
  const kvevict_workspace of_none =
      test_workspace(none, KVEVICT_OPERATION_EVICT, 0);
  cr_assert_eq(of_none.least_bytes, 0);
  cr_assert_eq(of_none.best_bytes, 0);
  kvevict_plan_destroy(none);
  for (int i = 0; i < 2; ++i) {
    kvevict_workspace last = {0};
    for (uint32_t max_tokens = 1; max_tokens <= 4096; max_tokens *= 4) {
      const kvevict_layer_geometry layer = Layer();
      const kvevict_geometry geometry = test_geometry(4, max_tokens, &layer);
      kvevict_plan* plan = PlanOf(&geometry, "snapkv:budget=100");
      const kvevict_workspace w = test_workspace(plan, kOperations[i], 0);
      EXPECT(w.least_bytes >= last.least_bytes &&
                 w.best_bytes >= last.best_bytes &&
                 w.least_bytes <= w.best_bytes && w.alignment == 64,
             "%u tokens: %zu to %zu bytes", max_tokens, w.least_bytes,
             w.best_bytes);
      last = w;
      kvevict_plan_destroy(plan);
    }
    cr_assert(last.least_bytes > 0);
  }
}

/* The bytes depend on the rows of queries or sums, not on the tokens. */
Test(plan, workspace_to_observe_is_that_of_the_rows) {
  static const char* const kOthers[] = {
      "none",       "streaming-llm:budget=100",
      "random",     "knorm",
      "keydiff",    "q-filter",
      "lagkv",      "cur",
      "non-causal", "expected-attention"};
  const kvevict_layer_geometry layer = Layer();
  const kvevict_geometry geometry = test_geometry(4, kMaxTokens, &layer);
  kvevict_plan* plan = PlanOf(&geometry, "snapkv:budget=100,window=5");
  for (uint32_t n = 0; n <= kMaxTokens; n += kMaxTokens / 2) {
    const kvevict_workspace w =
        test_workspace(plan, KVEVICT_OPERATION_OBSERVE, n);
    cr_expect_eq(w.least_bytes, (size_t)4 * 5 * 8 * 64 * sizeof(float));
    cr_expect_eq(w.best_bytes, w.least_bytes);
    cr_expect_eq(w.alignment, 64);
  }
  kvevict_plan_destroy(plan);
  for (size_t i = 0; i < sizeof kOthers / sizeof kOthers[0]; ++i) {
    plan = PlanOf(&geometry, kOthers[i]);
    cr_expect_eq(test_workspace(plan, KVEVICT_OPERATION_OBSERVE, 0).best_bytes,
                 0, "%s", kOthers[i]);
    kvevict_plan_destroy(plan);
  }
  static const char* const kPerSlot[] = {"h2o", "custom"};
  for (int i = 0; i < 2; ++i) {
    plan = PlanOf(&geometry, kPerSlot[i]);
    cr_expect_eq(test_workspace(plan, KVEVICT_OPERATION_OBSERVE, 0).best_bytes,
                 (size_t)4 * layer.n_kv_heads * kMaxTokens * sizeof(float));
    kvevict_plan_destroy(plan);
  }
}

Test(plan, workspace_query_refuses_bad_arguments) {
  kvevict_plan* plan = Plan("snapkv:budget=100");
  GROWN(kvevict_workspace) grown = {KVEVICT_WORKSPACE_INIT};
  kvevict_workspace* out = &grown.value;
  const kvevict_workspace before = *out;
  for (kvevict_operation op = KVEVICT_OPERATION_EVICT;
       op <= KVEVICT_OPERATION_OBSERVE; ++op) {
    EXPECT_INVALID(kvevict_plan_workspace(NULL, op, 0, out), "plan", "NULL");
    EXPECT_INVALID(kvevict_plan_workspace(plan, op, 0, NULL), "out", "NULL");
  }
  EXPECT_INVALID(kvevict_plan_workspace(plan, 3, 0, out), "operation", "3");
  EXPECT_INVALID(kvevict_plan_workspace(plan, -1, 0, out), "operation", "-1");
  EXPECT_INVALID(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT,
                                        kMaxTokens + 1, out),
                 "n_tokens", "max_tokens");
  cr_assert(memcmp(&before, out, sizeof before) == 0);
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      grown, kvevict_plan_workspace(plan, KVEVICT_OPERATION_SCORE, 0, out));
  kvevict_plan_destroy(plan);
}

Test(plan, layer_budgets_are_the_policys) {
  kvevict_plan* plan = Plan("pyramidkv:budget=0.25");
  const kvevict_policy* policy = test_policy("pyramidkv:budget=0.25");
  for (uint32_t n = 1; n < 5000; n = 2 * n + 1) {
    uint32_t expected[4], budgets[4];
    const uint32_t n_context = n < kMaxTokens ? n : kMaxTokens;
    const kvevict_status want =
        kvevict_policy_layer_budgets(policy, n_context, expected, 4);
    EXPECT(kvevict_plan_layer_budgets(plan, n, budgets, 4) == want,
           "%u tokens: another status", n);
    if (want != KVEVICT_OK) continue;
    cr_assert(memcmp(budgets, expected, sizeof budgets) == 0, "%u tokens", n);
  }
  kvevict_plan_destroy(plan);
}

Test(plan, layer_budgets_refuse_bad_arguments) {
  kvevict_plan* plan = Plan("pyramidkv:budget=100");
  uint32_t budgets[5];
  GUARD(budgets);
  EXPECT_INVALID(kvevict_plan_layer_budgets(NULL, 500, budgets, 4), "plan",
                 "NULL");
  EXPECT_INVALID(kvevict_plan_layer_budgets(plan, 500, NULL, 4), "budgets",
                 "NULL");
  EXPECT_INVALID(kvevict_plan_layer_budgets(plan, 500, budgets, 3),
                 "budgets_len", "3", "4");
  EXPECT_INVALID(kvevict_plan_layer_budgets(plan, 500, budgets, 5),
                 "budgets_len", "5", "4");
  EXPECT_INVALID(kvevict_plan_layer_budgets(plan, 0, budgets, 4), "n_tokens",
                 "0");
  EXPECT_INVALID(kvevict_plan_layer_budgets(plan, 2147483648u, budgets, 4),
                 "n_tokens", "2147483648");
  EXPECT_UNTOUCHED(budgets);
  kvevict_plan_destroy(plan);
}

typedef struct capability_row {
  char policy[32];
  kvevict_dtype q_dtype, k_dtype;
  uint32_t can_score;
  kvevict_reason score_reason;
  uint32_t needs_score;
} capability_row;

static const capability_row kCapabilities[] = {
    {"snapkv", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16, 1, KVEVICT_REASON_NONE, 1},
    {"pyramidkv", KVEVICT_DTYPE_BF16, KVEVICT_DTYPE_BF16, 1,
     KVEVICT_REASON_NONE, 1},
    {"snapkv", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_OPAQUE, 0,
     KVEVICT_REASON_OPAQUE_KEYS, 1},
    {"snapkv", KVEVICT_DTYPE_OPAQUE, KVEVICT_DTYPE_F32, 0,
     KVEVICT_REASON_OPAQUE_QUERIES, 1},
    {"snapkv", KVEVICT_DTYPE_FP8_E4M3, KVEVICT_DTYPE_F32, 0,
     KVEVICT_REASON_QUANTIZED_QUERIES, 1},
    {"snapkv", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_U4, 1, KVEVICT_REASON_NONE, 1},
    {"knorm", KVEVICT_DTYPE_OPAQUE, KVEVICT_DTYPE_Q8_0, 1, KVEVICT_REASON_NONE,
     1},
    {"knorm:merge=values", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_I8, 0,
     KVEVICT_REASON_QUANTIZED_KEYS, 1},
    {"streaming-llm", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_OPAQUE, 1,
     KVEVICT_REASON_NONE, 0},
    {"custom", KVEVICT_DTYPE_OPAQUE, KVEVICT_DTYPE_OPAQUE, 1,
     KVEVICT_REASON_NONE, 0},
    {"none", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 1, KVEVICT_REASON_NONE, 0},
    {"random", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 1, KVEVICT_REASON_NONE, 0},
    {"custom", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 1, KVEVICT_REASON_NONE, 0},
};

Test(plan, capabilities_say_what_and_why_not) {
  for (size_t i = 0; i < sizeof kCapabilities / sizeof kCapabilities[0]; ++i) {
    const capability_row* row = &kCapabilities[i];
    kvevict_layer_geometry with = Layer();
    with.q_dtype = row->q_dtype;
    with.k_dtype = row->k_dtype;
    if (row->k_dtype == KVEVICT_DTYPE_OPAQUE) with.k_head_dim = 0;
    const kvevict_geometry geometry = test_geometry(4, kMaxTokens, &with);
    kvevict_plan* plan = PlanOf(&geometry, row->policy);
    for (uint32_t layer = 0; layer < 4; ++layer) {
      kvevict_capabilities c = {.struct_size = sizeof c};
      EXPECT_OK(kvevict_plan_capabilities(plan, layer, &c));
      cr_expect_eq(c.can_move, 1);
      cr_expect_eq(c.move_reason, KVEVICT_REASON_NONE);
      cr_expect_eq(c.can_score, row->can_score, "row %zu", i);
      cr_expect_eq(c.score_reason, row->score_reason, "row %zu", i);
      cr_expect_eq(c.can_rotate, 0);
      cr_expect_eq(c.rotate_reason, row->k_dtype == KVEVICT_DTYPE_OPAQUE
                                        ? KVEVICT_REASON_OPAQUE_KEYS
                                    : row->k_dtype > KVEVICT_DTYPE_BF16
                                        ? KVEVICT_REASON_QUANTIZED_KEYS
                                        : KVEVICT_REASON_NO_ROPE);
      cr_expect_eq(c.needs_score, row->needs_score, "row %zu", i);
    }
    kvevict_plan_destroy(plan);
  }
}

Test(plan, capabilities_refuse_bad_arguments) {
  kvevict_plan* plan = Plan("snapkv:budget=100");
  kvevict_capabilities c;
  GUARD(c);
  c.struct_size = sizeof c;
  const kvevict_capabilities before = c;
  EXPECT_INVALID(kvevict_plan_capabilities(NULL, 0, &c), "plan", "NULL");
  EXPECT_INVALID(kvevict_plan_capabilities(plan, 0, NULL), "out", "NULL");
  EXPECT_INVALID(kvevict_plan_capabilities(plan, 4, &c), "layer 4",
                 "n_layers 4");
  cr_assert(memcmp(&c, &before, sizeof c) == 0);
  GROWN(kvevict_capabilities) grown;
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      grown, kvevict_plan_capabilities(plan, 0, &grown.value));
  kvevict_plan_destroy(plan);
}

Test(plan, every_reason_has_a_sentence) {
  cr_expect_str_eq(kvevict_reason_text(KVEVICT_REASON_NONE), "");
  cr_expect_str_eq(kvevict_reason_text(12), "");
  cr_expect_str_eq(kvevict_reason_text(-1), "");
  for (kvevict_reason reason = 1; reason <= 11; ++reason) {
    cr_expect(strlen(kvevict_reason_text(reason)) > 10);
  }
}

Test(plan, destroying_null_does_nothing) { kvevict_plan_destroy(NULL); }
