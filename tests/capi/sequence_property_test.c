/* Evictions do not depend on layouts, threads or chunks. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"

static const char* const kPolicies[] = {
    "snapkv:budget=60,window=16",
    "snapkv:budget=60,window=16,scope=model,over=max",
    "pyramidkv:budget=60,window=8,alpha=0.8",
    "streaming-llm:budget=33",
    "random:sink=0,budget=50,seed=3",
    "random:sink=0,budget=50,scope=layer",
    "tova:budget=40",
    "knorm:budget=40,weight=norm",
    "keydiff:budget=40,scope=layer",
    "keydiff:budget=40,block=16",
    "lagkv:budget=40,block=16",
    "cur:budget=40",
    "r-kv:budget=40,window=8",
    "knorm:budget=48,chunk=48",
    "knorm:budget=40,heads=adaptive",
    "knorm:budget=40,merge=values",
    "knorm:budget=40,merge=pivot,scope=layer",
    "snapkv:budget=40,window=8,fit=values",
};

/* Whether rows stay as they are. */
static bool LeavesRows(const char* policy) {
  return strstr(policy, "merge") == NULL && strstr(policy, "fit") == NULL;
}

/* Takes the second eviction back and evicts again, where that is possible. */
static test_model* RunScenario(const char* policy, test_layout layout,
                               uint32_t n_threads, uint32_t chunk) {
  const test_model_spec spec = {.policy = policy,
                                .n_layers = 3,
                                .n_q_heads = 8,
                                .n_kv_heads = 2,
                                .max_tokens = 150,
                                .max_positions = 240,
                                .k_head_dim = 24,
                                .v_head_dim = 10,
                                .q_dtype = KVEVICT_DTYPE_BF16,
                                .k_dtype = KVEVICT_DTYPE_F16,
                                .layout = layout,
                                .n_companions = 2,
                                .n_threads = n_threads};
  test_model* m = test_model_create(&spec, (test_random){77});
  const uint32_t kLengths[] = {150, 40, 7, 43};
  for (int round = 0; round < 4; ++round) {
    for (uint32_t done = 0; done < kLengths[round]; done += chunk) {
      const uint32_t left = kLengths[round] - done;
      test_model_step(m, left < chunk ? left : chunk);
    }
    if (round == 1 && LeavesRows(policy)) {
      const test_lent lent = test_lend(test_undo_bytes(m));
      EXPECT_OK(test_evict_lending(m, lent, NULL));
      EXPECT_OK(test_undo(m, lent));
      test_lent_return(lent);
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  return m;
}

static void ExpectSame(const test_model* a, const test_model* b,
                       const char* what) {
  test_expect_same_tokens(a, b, what);
  for (uint32_t l = 0; l < a->spec.n_layers; ++l) {
    uint32_t ends[8];
    for (uint32_t h = 0; h < a->spec.n_kv_heads; ++h) {
      ends[h] = test_model_stored_of(a, l, h);
    }
    test_expect_same_rows_of_heads(a->live[l], b->live[l], ends, what);
  }
}

Test(property, layouts_threads_and_chunks_give_the_same_bytes) {
  for (size_t p = 0; p < sizeof kPolicies / sizeof kPolicies[0]; ++p) {
    test_model* reference =
        RunScenario(kPolicies[p], TEST_TOKEN_MAJOR, 1, 1000);
    if (LeavesRows(kPolicies[p])) test_model_check(reference, kPolicies[p]);
    for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
      test_model* m = RunScenario(kPolicies[p], (test_layout)layout,
                                  1 + (uint32_t)layout % 4, 1000);
      ExpectSame(reference, m, test_layout_name(layout));
      EXPECT(layout % 4 == 0 || m->runner.n_calls > 0,
             "the parallel hook was never called");
      test_model_destroy(m);
    }
    for (uint32_t chunk = 1; chunk < 100; chunk = 2 * chunk + 1) {
      test_model* m = RunScenario(kPolicies[p], TEST_TOKEN_MAJOR, 1, chunk);
      ExpectSame(reference, m, "chunks");
      test_model_destroy(m);
    }
    test_model_destroy(reference);
  }
}
