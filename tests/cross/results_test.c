/* Prints what stays in words that must be the same on every machine: the positions
 * that two evictions leave in each head, for policies, dtypes and layouts.
 * test_model_check() checks that each slot has all bytes of its position's rows. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kFirst = 70, kSecond = 25, kMost = 100 };

static const char* const kPolicies[] = {
    "streaming-llm:budget=30",
    "snapkv:budget=30,window=8",
    "snapkv:budget=0.4,window=16,pool=avg5,sink=2,rows=sum,scope=layer",
    "snapkv:budget=0.4,window=8,merge=weighted",
    "pyramidkv:budget=30,window=8",
    "tova:budget=30",
    "knorm:budget=30",
    "keydiff:budget=30",
    "lagkv:budget=30",
    "cur:budget=30",
    "cake:budget=30,window=8",
    "random:budget=30",
};

static void print_heads(const test_model* m) {
  for (uint32_t layer = 0; layer < m->spec.n_layers; ++layer) {
    for (uint32_t head = 0; head < m->spec.n_kv_heads; ++head) {
      int32_t positions[kMost];
      const uint32_t n = test_model_stored_of(m, layer, head);
      test_model_positions(m, layer, head, positions);
      printf("%s, dtype %d, %s, layer %" PRIu32 ", head %" PRIu32 ":",
             m->spec.policy, (int)m->spec.k_dtype,
             test_layout_name(m->spec.layout), layer, head);
      for (uint32_t i = 0; i < n; ++i) printf(" %" PRId32, positions[i]);
      printf("\n");
    }
  }
}

static void print_life(const test_model_spec* spec) {
  const int merges = strstr(spec->policy, "merge=") != NULL;
  test_model* m = test_model_create(spec, (test_random){7});
  for (int i = 0; i < 2; ++i) {
    test_model_step(m, i == 0 ? kFirst : kSecond);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    print_heads(m);
    if (!merges) test_model_check(m, spec->policy);
  }
  test_model_destroy(m);
}

Test(results, of_policies_dtypes_and_layouts) {
  static const kvevict_dtype kDtypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                          KVEVICT_DTYPE_BF16};
  static const test_layout kLayouts[] = {TEST_PADDED, TEST_PAGED_3};
  for (size_t p = 0; p < sizeof kPolicies / sizeof kPolicies[0]; ++p) {
    test_model_spec spec = test_small_model(kPolicies[p]);
    for (size_t d = 0; d < sizeof kDtypes / sizeof kDtypes[0]; ++d) {
      spec.k_dtype = kDtypes[d];
      for (size_t l = 0; l < sizeof kLayouts / sizeof kLayouts[0]; ++l) {
        spec.layout = kLayouts[l];
        print_life(&spec);
      }
    }
  }
}

Test(results, of_quantized_rows) {
  test_random random = {11};
  for (int i = 0; i < 8; ++i) {
    test_model_spec spec = test_small_model("snapkv:budget=30,window=8");
    test_draw_quantized(&spec, &random);
    print_life(&spec);
  }
}
