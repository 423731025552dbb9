/* One layer's cache, queries for it, and a plan that scores them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SCENE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SCENE_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/plan.h"

typedef struct test_scene {
  test_plan* plan;
  test_cache* cache;
  uint8_t* query_bytes;
  kvevict_plane queries; /* [n_q_heads, window, k_head_dim] */
  uint32_t n_tokens;
} test_scene;

typedef struct test_scene_spec {
  const char* policy;
  uint32_t n_q_heads, n_kv_heads, head_dim, n_tokens;
  kvevict_dtype q_dtype, k_dtype;
  test_layout layout;
  uint32_t n_threads;
  float softmax_scale;
} test_scene_spec;

/* With f32 in a token-major cache, one thread and the usual scale. */
test_scene_spec test_scene_of(const char* policy, uint32_t n_q_heads,
                              uint32_t n_kv_heads, uint32_t head_dim,
                              uint32_t n_tokens);

/* Keys and queries depend on the seed, shapes and dtypes, not on the layout. */
test_scene* test_scene_create(const test_scene_spec* spec, uint64_t seed);
test_scene* test_scene_create_for(const char* simd_target,
                                  const test_scene_spec* spec, uint64_t seed);
void test_scene_destroy(test_scene* scene);

size_t test_scene_scores_len(const test_scene* scene);

/* Returns malloc'd scores [n_kv_heads, n_tokens] after checking what lies behind. */
float* test_scene_score(const test_scene* scene);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SCENE_H_ */
