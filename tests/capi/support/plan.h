/* A plan with a workspace of exactly the size it asks for and guard bytes behind it. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_PLAN_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_PLAN_H_

#include "kvevict/kvevict.h"
#include "tests/capi/support/hooks.h"
#include "tests/oracle/policy_values.h"

/* n equal layers; `layer` is borrowed. */
kvevict_geometry test_geometry(uint32_t n_layers, uint32_t max_tokens,
                               const kvevict_layer_geometry* layer);

/* A layer with f32 rows of K and V. */
kvevict_layer_geometry test_layer(uint32_t n_q_heads, uint32_t n_kv_heads,
                                  uint32_t k_head_dim, uint32_t v_head_dim);

/* A context for the CPU with default options, which lives as long as the process. */
kvevict_context* test_context(void);

typedef struct test_plan {
  kvevict_context* context;
  kvevict_plan* plan;
  const kvevict_policy* policy_handle; /* lives as long as the process */
  oracle_policy policy;
  kvevict_geometry geometry;
  kvevict_layer_geometry layer; /* all of them */
  test_runner runner;
  void* workspace; /* NULL if none is needed */
  size_t workspace_bytes;
} test_plan;

/* kvevict_plan_workspace(). */
kvevict_workspace test_workspace(const kvevict_plan* plan,
                                 kvevict_operation operation,
                                 uint32_t n_tokens);

/* All layers are equal. n_threads > 1 uses the shuffling runner. */
test_plan* test_plan_create(const char* policy,
                            const kvevict_geometry* geometry,
                            kvevict_operation operation, uint32_t n_threads);

/* Uses the code for a SIMD target; NULL selects the best one. */
test_plan* test_plan_create_for(const char* simd_target, const char* policy,
                                const kvevict_geometry* geometry,
                                kvevict_operation operation,
                                uint32_t n_threads);

/* Uses the least workspace, since the best may be large and is poisoned. */
test_plan* test_plan_create_least_for(const char* simd_target,
                                      const char* policy,
                                      const kvevict_geometry* geometry,
                                      kvevict_operation operation,
                                      uint32_t n_threads);

/* Uses the workspace that kvevict_select() needs for max_tokens and a list per KV
 * head. */
test_plan* test_plan_create_to_select(const char* policy,
                                      const kvevict_geometry* geometry,
                                      uint32_t n_threads);

/* Replaces the workspace by a smaller one with guard bytes behind it. */
void test_plan_shrink(test_plan* plan, size_t workspace_bytes);

/* Fills the workspace with a byte. */
void test_plan_poison(test_plan* plan, int byte);

/* Fails the test if a byte behind the workspace was written. */
void test_plan_check(const test_plan* plan);

/* Checks, then frees. */
void test_plan_destroy(test_plan* plan);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_PLAN_H_ */
