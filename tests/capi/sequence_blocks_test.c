/* Evictions in whole blocks are those of the doors, and a block table may be permuted
 * while no row moves. */
#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

enum { kLayers = 2, kHeads = 2 };

/* An eviction and the two doors agree for every policy that scores by itself. */
Test(sequence_blocks, an_eviction_is_score_and_select) {
  static const char* const kScoring[] = {
      "snapkv:budget=50,window=8,select_block=6",
      "snapkv:budget=50,window=8,select_block=20,scope=layer,over=sum",
      "snapkv:budget=0.5,window=8,select_block=5,scope=model,pool=max3",
      "tova:budget=40,select_block=4",
      "keydiff:sink=0,budget=40,select_block=4",
      "knorm:sink=0,budget=40,select_block=10,weight=norm,epsilon=9",
      "lagkv:budget=50,block=10,select_block=8",
      "random:sink=0,budget=40,select_block=8"};
  for (size_t p = 0; p < sizeof kScoring / sizeof kScoring[0]; ++p) {
    test_model_spec spec = test_small_model(kScoring[p]);
    spec.v_head_dim = spec.k_head_dim;
    spec.q_dtype = KVEVICT_DTYPE_F32;
    test_model* m = test_model_create(&spec, (test_random){p + 1});
    enum { N = 97 };
    test_model_step(m, N);
    test_plan* to_score =
        test_plan_create(kScoring[p], &m->geometry, KVEVICT_OPERATION_SCORE, 1);
    test_plan* to_select =
        test_plan_create_to_select(kScoring[p], &m->geometry, 1);
    float scores[kLayers][kHeads * N];
    for (uint32_t l = 0; l < kLayers; ++l) {
      const kvevict_plane queries =
          test_model_queries(m, l, N - m->policy.window);
      kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
      inputs.queries = &queries;
      kvevict_score_job job =
          test_score_job(N, &m->views[l], &inputs, scores[l], kHeads);
      job.layer = l;
      EXPECT_OK(test_score_jobs(to_score, &job, 1));
    }
    int32_t keep[kLayers][kHeads * N];
    uint32_t n_keep = 0;
    const kvevict_scope scope = m->policy.scope;
    for (uint32_t l = 0; l < (scope == KVEVICT_SCOPE_MODEL ? 1 : kLayers);
         ++l) {
      EXPECT_OK(
          test_select(to_select, l, scores[l],
                      (scope == KVEVICT_SCOPE_MODEL ? kLayers : 1) * kHeads * N,
                      N, NULL, 0, keep[l], kHeads * N, &n_keep));
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    EXPECT(n_keep < N && (N - n_keep) % m->policy.select_block == 0,
           "%s: %u kept", kScoring[p], n_keep);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const uint32_t list = scope == KVEVICT_SCOPE_KV_HEAD ? h : 0;
        const uint32_t at = scope == KVEVICT_SCOPE_MODEL ? 0 : l;
        int32_t positions[N];
        EXPECT(test_model_stored_of(m, l, h) == n_keep, "%s", kScoring[p]);
        test_model_positions(m, l, h, positions);
        EXPECT(memcmp(positions, keep[at] + (size_t)list * n_keep,
                      n_keep * sizeof *positions) == 0,
               "%s: layer %u, head %u: other slots than the doors'",
               kScoring[p], l, h);
      }
    }
    test_model_check(m, kScoring[p]);
    test_plan_destroy(to_score);
    test_plan_destroy(to_select);
    test_model_destroy(m);
  }
}

/* If a block is a page, the keep list names pages. An engine that takes their ids
 * in that order has the compacted cache, and no byte has moved. */
Test(sequence_blocks, a_paged_engine_frees_pages_without_moving_a_byte) {
  enum { N = 93, kPage = 16 };
  static const test_layout kPaged[] = {TEST_PAGED_16, TEST_PAGED_16_BY_HEAD};
  for (int i = 0; i < 2; ++i) {
    test_model_spec spec = test_small_model(
        "knorm:budget=64,sink=2,select_block=16,scope=layer,over=sum");
    spec.layout = kPaged[i];
    test_model* m = test_model_create(&spec, (test_random){11});
    test_model_append(m, N);
    test_cache* engine = test_cache_clone(m->live[0]);
    test_cache* before = test_cache_clone(m->live[0]);
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EXPECT_OK(test_model_evict(m, NULL, &report));
    const uint32_t n = test_model_stored(m, 0);
    cr_assert_eq(n, 61, "3 pages and the 13 tokens of the last");
    cr_assert_eq(report.blocks_freed, kLayers * 2);
    int32_t positions[N];
    test_model_positions(m, 0, 0, positions);
    for (uint32_t page = 0; page * kPage < n; ++page) {
      EXPECT(positions[page * kPage] % kPage == 0, "page %u begins inside one",
             page);
      engine->block_table[page] =
          before->block_table[positions[page * kPage] / kPage];
    }
    test_expect_same_rows(engine, m->live[0], n, test_layout_name(kPaged[i]));
    cr_expect(memcmp(engine->memory, before->memory, engine->n_bytes) == 0);
    test_cache_destroy(engine);
    test_cache_destroy(before);
    test_model_destroy(m);
  }
}
