/* Layers that share companions, and caches that overlap. sequence_life_test.c has layers
 * with one cache. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

/* Three layers with scales as companions of K and V. */
static test_model* Model(const char* policy) {
  const test_model_spec spec = test_three_layers(policy);
  return test_model_create(&spec, (test_random){1});
}

/* Bytes of a token in all heads of K, V and the f32 companion. */
enum { kTokenBytes = 2 * (16 * 4 + 8 * 4 + 4) };

/* Layer 2 has its own K and V and layer 0's scales. The scales move once if both
 * layers keep the same tokens. */
Test(shared, companions_shared_by_layers_move_once) {
  const char* const kPolicies[] = {
      "streaming-llm:budget=20", "snapkv:budget=50,scope=model",
      "random:sink=0,budget=30,scope=model", "streaming-llm:budget=20,sink=0"};
  for (int p = 0; p < 4; ++p) {
    test_model* m = Model(kPolicies[p]);
    test_model_step(m, 100);
    /* Both archives have the contents of the shared rows. */
    test_cache* const shared = m->live[0];
    kvevict_plane own = m->live[2]->companions[0];
    m->live[2]->companions[0] = shared->companions[0];
    for (uint32_t token = 0; token < 300; ++token) {
      for (uint32_t h = 0; h < 2; ++h) {
        test_cache_set(
            m->archive[2], &m->archive[2]->companions[0], token, h, 0,
            test_cache_get(m->archive[0], &m->archive[0]->companions[0], token,
                           h, 0));
      }
    }
    kvevict_evict_report report = {.struct_size = sizeof report};
    EXPECT_OK(test_model_evict(m, NULL, &report));
    test_model_check(m, kPolicies[p]);
    cr_expect_eq(report.bytes_before, 300 * kTokenBytes - 100 * 2 * 4, "%s",
                 kPolicies[p]);
    cr_expect_eq(report.tokens_before, 300, "%s", kPolicies[p]);
    test_model_step(m, 30); /* again, from positions that are listed */
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    test_model_check(m, kPolicies[p]);
    m->live[2]->companions[0] = own;
    test_model_destroy(m);
  }
}

Test(shared,
     companions_shared_by_layers_that_keep_different_tokens_are_errors) {
  const char* const kPolicies[] = {
      "snapkv:budget=50", "snapkv:budget=50,scope=layer",
      "random:sink=0,budget=20", "pyramidkv:budget=50",
      "streaming-llm:budget=20,split=geometric"};
  for (int p = 0; p < 5; ++p) {
    test_model* m = Model(kPolicies[p]);
    test_model_step(m, 40); /* nothing moves yet */
    kvevict_plane own = m->live[2]->companions[0];
    m->live[2]->companions[0] = m->live[0]->companions[0];
    if (p != 2 && p != 4) EXPECT_OK(test_model_evict(m, NULL, NULL));
    m->live[2]->companions[0] = own;
    test_model_step(m, 60);
    test_cache* before = test_cache_clone(m->live[0]);
    m->live[2]->companions[0] = m->live[0]->companions[0];
    EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[2].companions[0]",
                   "views[0]", "different tokens");
    test_expect_same_bytes(m->live[0], before, kPolicies[p]);
    m->live[2]->companions[0] = own;
    test_model_check(m, kPolicies[p]);
    test_cache_destroy(before);
    test_model_destroy(m);
  }
}

/* Two layers' companions overlap without being the same plane or rows. */
Test(shared, companions_that_overlap_are_errors) {
  test_model* m = Model("streaming-llm:budget=20");
  test_model_append(m, 100);
  const kvevict_plane own = m->live[2]->companions[0];
  m->live[2]->companions[0] = m->live[0]->companions[0];
  m->live[2]->companions[0].data += 4;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[0].companions[0]",
                 "views[2].companions[0]", "overlap");
  m->live[2]->companions[0] = own;
  m->live[2]->companions[0].data = m->views[1].k.data + 64;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "views[1].k",
                 "views[2].companions[0]", "overlap");
  m->live[2]->companions[0] = own;
  test_model_check(m, "overlapping companions");
  test_model_destroy(m);
}
