#include "tests/capi/support/scene.h"

#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"

test_scene_spec test_scene_of(const char* policy, uint32_t n_q_heads,
                              uint32_t n_kv_heads, uint32_t head_dim,
                              uint32_t n_tokens) {
  return (test_scene_spec){.policy = policy,
                           .n_q_heads = n_q_heads,
                           .n_kv_heads = n_kv_heads,
                           .head_dim = head_dim,
                           .n_tokens = n_tokens,
                           .q_dtype = KVEVICT_DTYPE_F32,
                           .k_dtype = KVEVICT_DTYPE_F32,
                           .layout = TEST_TOKEN_MAJOR,
                           .n_threads = 1};
}

test_scene* test_scene_create(const test_scene_spec* spec, uint64_t seed) {
  return test_scene_create_for(NULL, spec, seed);
}

test_scene* test_scene_create_for(const char* simd_target,
                                  const test_scene_spec* spec, uint64_t seed) {
  test_scene* s = calloc(1, sizeof *s);
  test_random random = {seed};
  kvevict_layer_geometry layer =
      test_layer(spec->n_q_heads, spec->n_kv_heads, spec->head_dim, 0);
  layer.q_dtype = spec->q_dtype;
  layer.k_dtype = spec->k_dtype;
  layer.softmax_scale = spec->softmax_scale;
  const kvevict_geometry geometry =
      test_geometry(1, spec->n_tokens + 3, &layer);
  s->plan = test_plan_create_for(simd_target, spec->policy, &geometry,
                                 KVEVICT_OPERATION_SCORE, spec->n_threads);
  s->n_tokens = spec->n_tokens;

  const uint32_t window = s->plan->policy.window;
  const uint32_t size = oracle_element_bytes(spec->q_dtype);
  const size_t n = (size_t)spec->n_q_heads * window * spec->head_dim;
  s->query_bytes = malloc(n * size);
  for (size_t i = 0; i < n; ++i) {
    test_store(spec->q_dtype, 2.0f * test_random_normal(&random),
               s->query_bytes + i * size);
  }
  s->queries.data = (uint64_t)(uintptr_t)s->query_bytes;
  s->queries.dtype = spec->q_dtype;
  s->queries.head_dim = spec->head_dim;
  s->queries.token_stride_bytes = (int64_t)spec->head_dim * size;
  s->queries.head_stride_bytes = s->queries.token_stride_bytes * window;

  /* The keys do not depend on the layout. */
  test_cache_spec cache = {TEST_TOKEN_MAJOR,
                           spec->n_kv_heads,
                           spec->n_tokens,
                           spec->k_dtype,
                           spec->head_dim,
                           KVEVICT_DTYPE_F32,
                           0,
                           0};
  test_cache* plain = test_cache_create(&cache, &random);
  cache.layout = spec->layout;
  s->cache = test_cache_create(&cache, &random);
  test_cache_copy_rows(s->cache, plain, spec->n_tokens);
  test_cache_destroy(plain);
  return s;
}

void test_scene_destroy(test_scene* s) {
  test_plan_destroy(s->plan);
  test_cache_destroy(s->cache);
  free(s->query_bytes);
  free(s);
}

size_t test_scene_scores_len(const test_scene* s) {
  return (size_t)s->plan->layer.n_kv_heads * s->n_tokens;
}

float* test_scene_score(const test_scene* s) {
  float* scores = malloc((test_scene_scores_len(s) + 4) * sizeof(float));
  memset(scores, TEST_GUARD, (test_scene_scores_len(s) + 4) * sizeof(float));
  EXPECT_OK(test_score(s->plan, &s->queries, &s->cache->view, s->n_tokens,
                       scores, test_scene_scores_len(s)));
  EXPECT(test_is_filled(scores + test_scene_scores_len(s), 4 * sizeof(float)),
         "wrote beyond the scores");
  return scores;
}
