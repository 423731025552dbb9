/* Evictions that rotate the keys they move: each key is what RoPE would have made it at its
 * slot, however often it moved. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/life.h"
#include "tests/capi/support/model.h"

Test(decode_rotate, keys_are_as_if_turned_to_their_slots_at_once) {
  static const char* const kTexts[] = {
      "streaming-llm:budget=30,sink=4,rotate=yes,margin=9",
      "knorm:sink=0,budget=30,rotate=yes,margin=12",
      "knorm:sink=2,budget=24,heads=adaptive,rotate=yes,margin=10",
      "random:budget=24,sink=2,split=geometric,alpha=0.8,rotate=yes,margin=8",
      "keydiff:sink=0,budget=30,scope=model,rotate=yes,margin=7",
      "knorm:budget=24,rotate=yes", /* at every step */
      "streaming-llm-original-decode:recent=26"};
  test_random random = test_random_start("decode_rotate");
  for (uint32_t i = 0; i < sizeof kTexts / sizeof *kTexts; ++i) {
    for (int layout = 0; layout < TEST_RING; layout += 3) {
      test_life* a =
          test_life_begin(kTexts[i], false, layout % 2 == 1,
                          (test_layout)((layout + i) % TEST_RING), &random);
      test_life_append(a, 20);
      for (uint32_t step = 0; step < 150; ++step) {
        test_life_append(a, 1);
        test_life_evict(a);
        if (step % 7 == 0) test_life_check(a, kTexts[i]);
      }
      EXPECT(test_life_longest(a) <= 47, "%s: %u slots", kTexts[i],
             test_life_longest(a));
      test_life_end(a);
    }
  }
}

/* A model under a policy that rotates. */
static test_model* Rotating(const char* policy, kvevict_dtype k_dtype) {
  static const float kInvFreq[8] = {1, 0.5f, 0.25f, 0.1f, 0.05f};
  test_model_spec spec = test_small_model("none");
  spec.k_dtype = k_dtype;
  test_model* m = test_model_create(&spec, (test_random){3});
  kvevict_geometry geometry = m->geometry;
  geometry.rope_inv_freq = kInvFreq;
  geometry.rope_inv_freq_len = 5;
  EXPECT_OK(test_model_go_on(m, policy, &geometry, NULL));
  return m;
}

/* The window's queries were rotated for other slots. */
Test(decode_rotate, observed_queries_are_forgotten) {
  test_model* m = Rotating("snapkv:budget=30,sink=2,window=4,rotate=yes",
                           KVEVICT_DTYPE_F32);
  test_model_step(m, 60);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_step(m, 3);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "window");
  test_model_step(m, 1);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  cr_expect_eq(test_model_stored(m, 0), 30);
  test_model_destroy(m);
}

Test(decode_rotate, what_cannot_be_turned_is_refused_before_a_byte_moves) {
  test_model* m =
      Rotating("streaming-llm:budget=30,rotate=yes", KVEVICT_DTYPE_OPAQUE);
  test_model_append(m, 60);
  test_cache* before = test_cache_clone(m->live[0]);
  EXPECT_FAILS(test_model_evict(m, NULL, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "layer 0: cannot rotate");
  test_expect_same_bytes(m->live[0], before, "refused");
  test_model_check(m, "refused");
  test_cache_destroy(before);
  test_model_destroy(m);
}
