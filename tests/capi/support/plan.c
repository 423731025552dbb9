#include "tests/capi/support/plan.h"

#include <stdlib.h>

#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

enum { kGuardBytes = 1024 };

kvevict_geometry test_geometry(uint32_t n_layers, uint32_t max_tokens,
                               const kvevict_layer_geometry* layer) {
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = n_layers;
  geometry.max_tokens = max_tokens;
  geometry.layers = layer;
  geometry.layers_len = 1;
  return geometry;
}

kvevict_layer_geometry test_layer(uint32_t n_q_heads, uint32_t n_kv_heads,
                                  uint32_t k_head_dim, uint32_t v_head_dim) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = n_q_heads;
  layer.n_kv_heads = n_kv_heads;
  layer.k_head_dim = k_head_dim;
  layer.v_head_dim = v_head_dim;
  return layer;
}

kvevict_context* test_context(void) {
  static kvevict_context* context;
  if (context == NULL) EXPECT_OK(kvevict_context_create(NULL, &context));
  return context;
}

test_plan* test_plan_create(const char* policy,
                            const kvevict_geometry* geometry,
                            kvevict_operation operation, uint32_t n_threads) {
  return test_plan_create_for(NULL, policy, geometry, operation, n_threads);
}

static test_plan* CreateHandles(const char* simd_target, const char* policy,
                                const kvevict_geometry* geometry,
                                uint32_t n_threads) {
  test_plan* p = calloc(1, sizeof(*p));
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.simd_target = simd_target;
  test_runner_install(&p->runner, n_threads, &options);
  p->policy_handle = test_policy(policy);
  p->policy = oracle_policy_of(p->policy_handle);
  p->geometry = *geometry;
  p->layer = geometry->layers[0];
  p->geometry.layers = &p->layer;
  test_use_device(&options);
  EXPECT_OK(kvevict_context_create(&options, &p->context));
  EXPECT_OK(kvevict_plan_create(p->context, geometry, p->policy_handle, NULL,
                                &p->plan));
  return p;
}

static test_plan* WithWorkspace(test_plan* p, size_t bytes) {
  p->workspace_bytes = bytes;
  if (bytes > 0) {
    p->workspace = test_workspace_memory(bytes + kGuardBytes);
    memset((char*)p->workspace + p->workspace_bytes, TEST_GUARD, kGuardBytes);
    test_plan_poison(p, 0xFF); /* every float a NaN */
  }
  return p;
}

test_plan* test_plan_create_for(const char* simd_target, const char* policy,
                                const kvevict_geometry* geometry,
                                kvevict_operation operation,
                                uint32_t n_threads) {
  test_plan* p = CreateHandles(simd_target, policy, geometry, n_threads);
  return WithWorkspace(p, test_workspace(p->plan, operation, 0).best_bytes);
}

test_plan* test_plan_create_least_for(const char* simd_target,
                                      const char* policy,
                                      const kvevict_geometry* geometry,
                                      kvevict_operation operation,
                                      uint32_t n_threads) {
  test_plan* p = CreateHandles(simd_target, policy, geometry, n_threads);
  return WithWorkspace(p, test_workspace(p->plan, operation, 0).least_bytes);
}

test_plan* test_plan_create_to_select(const char* policy,
                                      const kvevict_geometry* geometry,
                                      uint32_t n_threads) {
  test_plan* p = CreateHandles(NULL, policy, geometry, n_threads);
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_select_workspace(p->context, geometry->max_tokens,
                                     p->layer.n_kv_heads, &workspace));
  return WithWorkspace(p, workspace.least_bytes);
}

kvevict_workspace test_workspace(const kvevict_plan* plan,
                                 kvevict_operation operation,
                                 uint32_t n_tokens) {
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_plan_workspace(plan, operation, n_tokens, &workspace));
  return workspace;
}

void test_plan_shrink(test_plan* plan, size_t workspace_bytes) {
  plan->workspace_bytes = workspace_bytes;
  memset((char*)plan->workspace + workspace_bytes, TEST_GUARD, kGuardBytes);
  test_plan_poison(plan, 0xFF);
}

void test_plan_poison(test_plan* plan, int byte) {
  if (plan->workspace == NULL) return;
  memset(plan->workspace, byte, plan->workspace_bytes);
}

void test_plan_check(const test_plan* plan) {
  EXPECT(plan->workspace == NULL ||
             test_is_filled((char*)plan->workspace + plan->workspace_bytes,
                            kGuardBytes),
         "a call wrote beyond its workspace of %zu bytes",
         plan->workspace_bytes);
}

void test_plan_destroy(test_plan* plan) {
  test_plan_check(plan);
  kvevict_plan_destroy(plan->plan);
  kvevict_context_destroy(plan->context);
  free(plan->workspace);
  free(plan);
}
