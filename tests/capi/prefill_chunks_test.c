/* Prompts in chunks: an eviction at the end keeps the same, whatever the chunks. With
 * an eviction after each chunk no cache exceeds its budget, margin and a chunk. */
#include <stdio.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kLayers = 2, kMostSlots = 160, kMostPositions = 800 };

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = kMostSlots;
  spec.max_positions = kMostPositions;
  return test_model_create(&spec, (test_random){37});
}

/* Every policy that reads queries, sums or keys, with budgets from 24 tokens on. */
static const char* const kPolicies[] = {
    "streaming-llm:budget=16,sink=2",
    "snapkv:budget=16,sink=1,window=8",
    "snapkv:budget=16,sink=1,window=8,scope=layer,rows=max,pool=max3",
    "snapkv:budget=16,window=5,scope=model,order=pool-reduce",
    "snapkv:budget=16,window=8,heads=adaptive,normalize=yes",
    "snapkv:budget=16,window=8,weight=norm,order=weigh-pool",
    "snapkv:budget=16,window=8,row_weight=past",
    "snapkv:budget=16,window=8,keep_window=no,split=lazy,lazy=0.4",
    "pyramidkv:budget=16,window=4,alpha=0.8",
    "tova:budget=12",
    "cake:budget=16,window=6",
    "r-kv:budget=16,window=4",
    "h2o:budget=12,recent=3,rows=sum",
    "h2o:budget=12,recent=3,rows=mean,sums=query,group=max",
    "h2o:budget=12,recent=0,scope=layer,sums=layer",
    "knorm:budget=12,sink=1",
    "keydiff:budget=12",
    "keydiff:budget=12,block=8",
    "lagkv:budget=16,sink=2,block=6",
    "cur:budget=12,block=6",
    "random:budget=12,seed=5",
    "knorm:budget=14,sink=0,chunk=16",
    "knorm:budget=12,select_block=4,merge=values"};
enum { kPoliciesLen = sizeof kPolicies / sizeof *kPolicies };

/* ---- A chunk ---- */

/* The weight that a query gives a slot up to its own. Weights add up without rounding. */
static float Weight(uint32_t layer, uint32_t row, uint32_t query,
                    uint32_t slot) {
  test_random random = {((layer * 8 + row) * 1024ull + query) * 1024 + slot};
  (void)test_random_u64(&random);
  return slot > query ? 0.0f
                      : (float)test_random_below(&random, 1024) / 1024.0f;
}

/* Observes positions [first, first + n), of which none was evicted. */
static void ObserveSums(const test_model* m, uint32_t first, uint32_t n) {
  static test_attention a;
  for (uint32_t l = 0; l < kLayers; ++l) {
    a.n_rows = m->spec.n_q_heads;
    a.n_slots = first + n;
    memset(a.values, 0, sizeof a.values);
    for (uint32_t row = 0; row < a.n_rows; ++row) {
      for (uint32_t q = first; q < first + n; ++q) {
        for (uint32_t t = 0; t <= q; ++t) {
          a.values[row][t] += Weight(l, row, q, t);
        }
      }
    }
    EXPECT_OK(test_attention_observe(m->sequence, l, &a, n, first));
  }
}

static void Step(test_model* m, uint32_t n) {
  if (m->policy.kind == ORACLE_H2O && n > 0) {
    ObserveSums(m, m->n_seen, n);
  }
  test_model_step(m, n);
}

/* Appends everything in chunks, then evicts once. */
static test_model* Prefilled(const char* policy, const uint32_t* chunks,
                             uint32_t n_chunks) {
  test_model* m = Model(policy);
  for (uint32_t i = 0; i < n_chunks; ++i) Step(m, chunks[i]);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  return m;
}

static void ExpectSame(const test_model* whole, const char* policy,
                       const uint32_t* chunks, uint32_t n_chunks) {
  test_model* m = Prefilled(policy, chunks, n_chunks);
  char what[200];
  snprintf(what, sizeof what, "%s in %u chunks, the first of %u", policy,
           n_chunks, chunks[0]);
  test_expect_same_tokens(whole, m, what);
  for (uint32_t l = 0; l < kLayers; ++l) {
    test_expect_same_rows(whole->live[l], m->live[l], 8, what);
  }
  test_model_destroy(m);
}

Test(prefill_chunks, random_splits_keep_the_same) {
  enum { kPrompt = 140 };
  test_random random = test_random_start("prefill chunks");
  for (int p = 0; p < kPoliciesLen; ++p) {
    const uint32_t all = kPrompt;
    test_model* whole = Prefilled(kPolicies[p], &all, 1);
    for (int turn = 0; turn < 3; ++turn) {
      const uint32_t most = 1u << test_random_between(&random, 1, 7);
      uint32_t chunks[kPrompt], n = 0;
      for (uint32_t done = 0; done < kPrompt; done += chunks[n++]) {
        const uint32_t left = kPrompt - done;
        chunks[n] = test_random_between(&random, 1, left < most ? left : most);
      }
      ExpectSame(whole, kPolicies[p], chunks, n);
    }
    test_model_destroy(whole);
  }
}

/* ---- Evicted after each chunk ---- */
