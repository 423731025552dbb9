#include <math.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/policies.h"

enum { kMaxTokens = 1000 };

static kvevict_geometry Geometry(void) {
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = 4;
  geometry.n_q_heads = 8;
  geometry.n_kv_heads = 2;
  geometry.k_head_dim = 64;
  geometry.v_head_dim = 32;
  geometry.max_tokens = kMaxTokens;
  return geometry;
}

static kvevict_context* context;

static void CreateContext(void) {
  EXPECT_OK(kvevict_context_create(NULL, &context));
}
static void DestroyContext(void) { kvevict_context_destroy(context); }
TestSuite(plan, .init = CreateContext, .fini = DestroyContext);

static kvevict_plan* Plan(const char* policy_text) {
  const kvevict_geometry geometry = Geometry();
  const kvevict_policy policy = test_policy(policy_text);
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(context, &geometry, &policy, NULL, &plan));
  return plan;
}

Test(plan, geometry_init_macro_equals_init_function) {
  const kvevict_geometry macro = KVEVICT_GEOMETRY_INIT;
  kvevict_geometry made;
  GUARD(made);
  EXPECT_OK(kvevict_geometry_init(&made, sizeof made));
  cr_assert(memcmp(&made, &macro, sizeof made) == 0);
  GUARD(made);
  EXPECT_INVALID(kvevict_geometry_init(NULL, sizeof made), "out", "NULL");
  EXPECT_INVALID(kvevict_geometry_init(&made, sizeof made - 1), "struct_size");
  EXPECT_UNTOUCHED(made);
}

Test(plan, null_arguments_are_errors) {
  const kvevict_geometry geometry = Geometry();
  const kvevict_policy policy = test_policy("snapkv:budget=100");
  kvevict_plan* plan;
  GUARD(plan);
  EXPECT_INVALID(kvevict_plan_create(NULL, &geometry, &policy, NULL, &plan),
                 "context", "NULL");
  EXPECT_INVALID(kvevict_plan_create(context, NULL, &policy, NULL, &plan),
                 "geometry", "NULL");
  EXPECT_INVALID(kvevict_plan_create(context, &geometry, NULL, NULL, &plan),
                 "policy", "NULL");
  EXPECT_INVALID(kvevict_plan_create(context, &geometry, &policy, NULL, NULL),
                 "out_plan", "NULL");
  EXPECT_UNTOUCHED(plan);
}

static kvevict_status CreateAndDestroy(const kvevict_geometry* geometry,
                                       const kvevict_policy* policy) {
  kvevict_plan* plan = NULL;
  const kvevict_status status =
      kvevict_plan_create(context, geometry, policy, NULL, &plan);
  cr_assert((status == KVEVICT_OK) == (plan != NULL));
  kvevict_plan_destroy(plan);
  return status;
}

Test(plan, struct_sizes_are_checked) {
  GROWN(kvevict_geometry) geometry = {Geometry()};
  GROWN(kvevict_policy) policy = {test_policy("snapkv:budget=100")};
  EXPECT_CHECKS_STRUCT_SIZE(geometry,
                            CreateAndDestroy(&geometry.value, &policy.value));
  EXPECT_CHECKS_STRUCT_SIZE(policy,
                            CreateAndDestroy(&geometry.value, &policy.value));
}

/* `change` to a valid geometry g or policy p makes the plan fail. */
#define EXPECT_BREAKS(change, ...)                         \
  do {                                                     \
    kvevict_geometry g = Geometry();                       \
    kvevict_policy p = test_policy("snapkv:budget=100");   \
    EXPECT_OK(CreateAndDestroy(&g, &p));                   \
    change;                                                \
    EXPECT_INVALID(CreateAndDestroy(&g, &p), __VA_ARGS__); \
  } while (0)

Test(plan, bad_geometries_are_errors) {
  EXPECT_BREAKS(g.n_layers = 0, "n_layers", "0");
  EXPECT_BREAKS(g.n_q_heads = 0, "n_q_heads", "0");
  EXPECT_BREAKS(g.n_kv_heads = 0, "n_kv_heads", "0");
  EXPECT_BREAKS(g.n_q_heads = 65536, "n_q_heads 65536", "65535");
  EXPECT_BREAKS((g.n_q_heads = g.n_kv_heads = 65536), "n_kv_heads 65536",
                "65535");
  EXPECT_BREAKS(g.n_q_heads = 7, "n_q_heads 7", "n_kv_heads 2");
  EXPECT_BREAKS(g.n_q_heads = 1, "n_q_heads", "n_kv_heads");
  EXPECT_BREAKS(g.k_head_dim = 0, "k_head_dim", "0");
  EXPECT_BREAKS(g.q_dtype = 4, "q_dtype", "4");
  EXPECT_BREAKS(g.k_dtype = 4, "k_dtype", "4");
  EXPECT_BREAKS(g.v_dtype = -1, "v_dtype", "-1");
  EXPECT_BREAKS(g.k_dtype = KVEVICT_DTYPE_OPAQUE, "k_head_dim", "64");
  EXPECT_BREAKS(g.v_dtype = KVEVICT_DTYPE_OPAQUE, "v_head_dim", "32");
  EXPECT_BREAKS(g.max_tokens = 0, "max_tokens", "0");
  EXPECT_BREAKS(g.max_tokens = 2147483648u, "max_tokens", "2147483648");
  EXPECT_BREAKS(g.softmax_scale = -0.1234567f, "softmax_scale -0.1234567 ");
  EXPECT_BREAKS(g.softmax_scale = NAN, "softmax_scale", "nan");
  EXPECT_BREAKS(g.softmax_scale = INFINITY, "softmax_scale", "inf");
  EXPECT_BREAKS(g.reserved = 5, "reserved", "5");
}

Test(plan, bad_policies_are_errors) {
  EXPECT_BREAKS(p.budget = 0.0, "budget", "0");
  EXPECT_BREAKS(p.budget = 36.0, "36");
  EXPECT_BREAKS(p.pool_kernel = 6, "pool width", "6");
  EXPECT_BREAKS(p.kind = 17, "kind", "17");
}

Test(plan, workspaces_beyond_size_t_are_errors) {
  EXPECT_BREAKS((g.n_layers = UINT32_MAX, g.max_tokens = INT32_MAX), "n_layers",
                "4294967295");
  EXPECT_BREAKS((g.n_q_heads = g.n_kv_heads = UINT32_MAX), "heads",
                "4294967295");
  EXPECT_BREAKS(g.k_head_dim = UINT32_MAX, "k_head_dim", "4294967295");
}

Test(plan, no_v_and_opaque_rows_are_valid) {
  kvevict_geometry g = Geometry();
  const kvevict_policy policy = test_policy("snapkv:budget=100");
  g.v_head_dim = 0;
  EXPECT_OK(CreateAndDestroy(&g, &policy));
  g.k_dtype = g.v_dtype = KVEVICT_DTYPE_OPAQUE;
  g.k_head_dim = 0;
  EXPECT_OK(CreateAndDestroy(&g, &policy));
}

Test(plan, workspace_is_nothing_for_policy_none_and_grows_with_max_tokens) {
  const kvevict_operation kOperations[] = {KVEVICT_OPERATION_EVICT,
                                           KVEVICT_OPERATION_SCORE};
  kvevict_plan* none = Plan("none");
  size_t bytes = 99;
  EXPECT_OK(
      kvevict_plan_workspace_bytes(none, KVEVICT_OPERATION_EVICT, 0, &bytes));
  cr_assert_eq(bytes, 0);
  kvevict_plan_destroy(none);
  for (int i = 0; i < 2; ++i) {
    size_t last = 0;
    for (uint32_t max_tokens = 1; max_tokens <= 4096; max_tokens *= 4) {
      kvevict_geometry geometry = Geometry();
      geometry.max_tokens = max_tokens;
      const kvevict_policy policy = test_policy("snapkv:budget=100");
      kvevict_plan* plan = NULL;
      EXPECT_OK(kvevict_plan_create(context, &geometry, &policy, NULL, &plan));
      EXPECT_OK(kvevict_plan_workspace_bytes(plan, kOperations[i], 0, &bytes));
      cr_assert(bytes >= last, "%zu bytes after %zu", bytes, last);
      last = bytes;
      kvevict_plan_destroy(plan);
    }
    cr_assert(last > 0);
  }
}

Test(plan, workspace_query_refuses_bad_arguments) {
  kvevict_plan* plan = Plan("snapkv:budget=100");
  size_t bytes;
  GUARD(bytes);
  EXPECT_INVALID(
      kvevict_plan_workspace_bytes(NULL, KVEVICT_OPERATION_EVICT, 0, &bytes),
      "plan", "NULL");
  EXPECT_INVALID(
      kvevict_plan_workspace_bytes(plan, KVEVICT_OPERATION_EVICT, 0, NULL),
      "out_bytes", "NULL");
  EXPECT_INVALID(kvevict_plan_workspace_bytes(plan, 3, 0, &bytes), "operation",
                 "3");
  EXPECT_INVALID(kvevict_plan_workspace_bytes(plan, -1, 0, &bytes), "operation",
                 "-1");
  EXPECT_INVALID(
      kvevict_plan_workspace_bytes(plan, KVEVICT_OPERATION_EVICT,
                                   Geometry().max_tokens + 1, &bytes),
      "n_tokens", "max_tokens");
  EXPECT_INVALID(kvevict_plan_least_workspace_bytes(
                     NULL, KVEVICT_OPERATION_EVICT, 0, &bytes),
                 "plan", "NULL");
  EXPECT_INVALID(kvevict_plan_least_workspace_bytes(
                     plan, KVEVICT_OPERATION_EVICT, 0, NULL),
                 "out_bytes", "NULL");
  EXPECT_INVALID(kvevict_plan_least_workspace_bytes(plan, 3, 0, &bytes),
                 "operation", "3");
  EXPECT_UNTOUCHED(bytes);
  kvevict_plan_destroy(plan);
}

Test(plan, layer_budgets_are_the_policys) {
  kvevict_plan* plan = Plan("pyramidkv:budget=0.25");
  const kvevict_policy policy = test_policy("pyramidkv:budget=0.25");
  for (uint32_t n = 1; n < 5000; n = 2 * n + 1) {
    uint32_t expected[4], budgets[4];
    const uint32_t n_context = n < kMaxTokens ? n : kMaxTokens;
    const kvevict_status want =
        kvevict_policy_layer_budgets(&policy, n_context, expected, 4);
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
    {"streaming-llm", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_OPAQUE, 0,
     KVEVICT_REASON_OPAQUE_KEYS, 0},
    {"none", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 1, KVEVICT_REASON_NONE, 0},
    {"random", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 1, KVEVICT_REASON_NONE, 0},
    {"custom", KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, 1, KVEVICT_REASON_NONE, 0},
};

Test(plan, capabilities_say_what_and_why_not) {
  for (size_t i = 0; i < sizeof kCapabilities / sizeof kCapabilities[0]; ++i) {
    const capability_row* row = &kCapabilities[i];
    kvevict_geometry geometry = Geometry();
    geometry.q_dtype = row->q_dtype;
    geometry.k_dtype = row->k_dtype;
    if (row->k_dtype == KVEVICT_DTYPE_OPAQUE) geometry.k_head_dim = 0;
    const kvevict_policy policy = test_policy(row->policy);
    kvevict_plan* plan = NULL;
    EXPECT_OK(kvevict_plan_create(context, &geometry, &policy, NULL, &plan));
    for (uint32_t layer = 0; layer < 4; ++layer) {
      kvevict_capabilities c = {.struct_size = sizeof c};
      EXPECT_OK(kvevict_plan_capabilities(plan, layer, &c));
      cr_expect_eq(c.can_move, 1);
      cr_expect_eq(c.move_reason, KVEVICT_REASON_NONE);
      cr_expect_eq(c.can_score, row->can_score, "row %zu", i);
      cr_expect_eq(c.score_reason, row->score_reason, "row %zu", i);
      cr_expect_eq(c.can_rotate, 0);
      cr_expect_eq(c.rotate_reason, KVEVICT_REASON_NO_ROTATION);
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
  cr_expect_str_eq(kvevict_reason_text(4), "");
  cr_expect_str_eq(kvevict_reason_text(-1), "");
  for (kvevict_reason reason = 1; reason <= 3; ++reason) {
    cr_expect(strlen(kvevict_reason_text(reason)) > 10);
  }
}

Test(plan, destroying_null_does_nothing) { kvevict_plan_destroy(NULL); }
