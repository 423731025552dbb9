/* Evictions that merge: under any policy, the rows that stay are merged with those
 * that go as the oracle says. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/merged.h"
#include "tests/capi/support/model.h"

static uint32_t n_compared;

/* Evicts and compares every layer and head with the oracle. */
static void EvictAndCheck(test_model* m, const char* what) {
  static test_held held;
  test_hold(m, &held);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  const oracle_policy* p = &m->policy;
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    test_stayed stayed;
    test_cache* moved = test_held_moved(m, &held, l, &stayed);
    for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
      n_compared += test_expect_merged(
          held.caches[l], m->live[l], moved, h, held.n[l][h], stayed.slots[h],
          stayed.n[h], p->merge, p->merge_threshold, p->merge_fraction, what);
    }
    test_cache_destroy(moved);
  }
  test_held_free(m, &held);
}

static const char* const kPolicies[] = {
    "streaming-llm:budget=40,merge=values",
    "streaming-llm:budget=0.5,sink=2,merge=pivot",
    "random:sink=0,budget=33,merge=values,merge_threshold=0.2,merge_fraction=0."
    "75",
    "random:sink=0,budget=40,scope=layer,merge=weighted",
    "random:sink=0,budget=40,scope=model,merge=pivot",
    "random:sink=0,budget=30,scope=model,merge=values",
    "knorm:budget=45,sink=2,heads=adaptive,merge=values",
    "random:sink=0,budget=45,heads=threshold,threshold=0.6,merge=weighted",
    "random:sink=0,budget=48,select_block=8,merge=values,merge_fraction=0.5",
    "random:sink=0,budget=40,split=geometric,merge=pivot",
    "snapkv:budget=50,window=8,merge=weighted",
    "keydiff:sink=0,budget=40,merge=values"};

Test(sequence_merge, every_policy_merges_as_the_oracle_says) {
  test_random random = test_random_start("sequence merge");
  const kvevict_dtype kDTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                   KVEVICT_DTYPE_BF16};
  uint32_t n_heads = 0;
  for (size_t i = 0; i < sizeof kPolicies / sizeof *kPolicies; ++i) {
    for (uint32_t round = 0; round < 3; ++round) {
      test_model_spec spec = test_small_model(kPolicies[i]);
      spec.layout = (test_layout)((i + round * 5) % TEST_N_LAYOUTS);
      spec.k_dtype = kDTypes[(i + round) % 3];
      spec.n_threads = 1 + round;
      spec.n_companions = round;
      test_model* m = test_model_create(&spec, random);
      test_model_step(m, 90);
      EvictAndCheck(m, kPolicies[i]);
      test_model_step(m, 30);
      EvictAndCheck(m, kPolicies[i]);
      n_heads += 2 * spec.n_layers * spec.n_kv_heads;
      test_model_destroy(m);
    }
  }
  EXPECT(n_compared * 2 > n_heads, "only %u heads of %u could be told",
         n_compared, n_heads);
}

/* Without budget pressure no byte changes. */
Test(sequence_merge, an_eviction_that_drops_nothing_changes_nothing) {
  test_random random = {5};
  test_model_spec spec =
      test_small_model("random:sink=0,budget=60,merge=pivot");
  test_model* m = test_model_create(&spec, random);
  test_model_step(m, 60);
  test_cache* before = test_cache_clone(m->live[0]);
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(test_model_evict(m, NULL, &report));
  cr_expect_eq(report.evicted, 0);
  test_expect_same_bytes(m->live[0], before, "nothing dropped");
  test_cache_destroy(before);
  test_model_destroy(m);
}

/* Layers that share a cache are merged once. */
Test(sequence_merge, a_shared_cache_is_merged_once) {
  test_random random = {6};
  test_cache* merged[2];
  for (int shares = 0; shares < 2; ++shares) {
    test_model_spec spec =
        test_small_model("streaming-llm:budget=40,merge=weighted");
    test_model* m = test_model_create(&spec, random);
    test_model_step(m, 80);
    if (shares) m->views[1] = m->views[0];
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    merged[shares] = test_cache_clone(m->live[0]);
    test_model_destroy(m);
  }
  test_expect_same_rows(merged[1], merged[0], 40, "shared");
  test_cache_destroy(merged[0]);
  test_cache_destroy(merged[1]);
}

Test(sequence_merge, rows_that_cannot_be_read_are_refused) {
  const char* const kValues = "streaming-llm:budget=40,merge=values";
  const char* const kPivot = "streaming-llm:budget=40,merge=pivot";
  test_expect_reads(kValues, KVEVICT_DTYPE_OPAQUE, 8, "cannot merge",
                    "k_dtype");
  test_expect_reads(kPivot, KVEVICT_DTYPE_OPAQUE, 8, "cannot merge", "k_dtype");
  test_expect_reads(kValues, KVEVICT_DTYPE_I8, 8, "cannot merge",
                    "k_dtype is quantized");
  test_expect_reads(kPivot, KVEVICT_DTYPE_FP8_E5M2, 8, "cannot merge",
                    "k_dtype is quantized");
  test_expect_reads(kValues, KVEVICT_DTYPE_F16, 0, "cannot merge",
                    "v_head_dim");
  test_expect_reads(kPivot, KVEVICT_DTYPE_F16, 0, NULL, "");
  test_expect_reads(kValues, KVEVICT_DTYPE_F16, 8, NULL, "");
}

Test(sequence_merge, a_workspace_holds_what_merging_needs) {
  for (int merges = 0; merges < 2; ++merges) {
    test_random random = {8};
    test_model_spec spec =
        test_small_model(merges ? "streaming-llm:budget=40,merge=values"
                                : "streaming-llm:budget=40");
    test_model* m = test_model_create(&spec, random);
    kvevict_workspace needs = {.struct_size = sizeof needs};
    EXPECT_OK(
        kvevict_plan_workspace(m->plan, KVEVICT_OPERATION_EVICT, 100, &needs));
    EXPECT((needs.least_bytes >= 28 * 100) == merges, "%llu bytes",
           (unsigned long long)needs.least_bytes);
    test_model_destroy(m);
  }
}
