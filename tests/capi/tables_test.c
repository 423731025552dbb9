/* Evictions by table: long tables, tables of all layers, and rotated keys.
 * sequence_life_test.c has those of any policy. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

/* Evicts by table, which writes to no row. */
static void EvictByTable(test_model* m, kvevict_evict_report* report,
                         const char* what) {
  test_cache* before[2] = {test_cache_clone(m->live[0]),
                           test_cache_clone(m->live[1])};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.by_table = 1;
  EXPECT_OK(test_model_evict(m, &options, report));
  for (int l = 0; l < 2; ++l) {
    test_expect_same_bytes(m->live[l], before[l], what);
    test_cache_destroy(before[l]);
  }
}

Test(sequence_tables, of_thousands_of_blocks) {
  static const char* const kLong[] = {
      "knorm:budget=1000,sink=3,scope=layer",
      "knorm:budget=1900,sink=3,scope=layer,tie=higher",
      "streaming-llm:budget=1300,sink=700,select_block=2"};
  for (int i = 0; i < 3; ++i) {
    test_model_spec spec = test_small_model(kLong[i]);
    spec.max_tokens = 2600;
    spec.max_positions = 5200;
    spec.k_head_dim = spec.v_head_dim = 4;
    const test_random seed = {3};
    test_model* moves = test_model_create(&spec, seed);
    spec.layout = TEST_PAGED_1;
    test_model* m = test_model_create(&spec, seed);
    for (int round = 0; round < 3; ++round) {
      const uint32_t n = round == 0 ? 2600 : 600;
      test_model_append(m, n);
      test_model_append(moves, n);
      kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
      EvictByTable(m, &report, kLong[i]);
      cr_expect_eq(report.evicted, 1);
      EXPECT_OK(test_model_evict(moves, NULL, NULL));
      test_expect_same_tokens(m, moves, kLong[i]);
      test_model_check(m, kLong[i]);
    }
    test_model_destroy(m);
    test_model_destroy(moves);
  }
}

/* All layers may use one table, as in engines whose layers share block ids. */
Test(sequence_tables, of_all_layers_may_be_one) {
  static const char* const kAlike[] = {
      "streaming-llm:sink=3,recent=41,select_block=16",
      "knorm:budget=63,sink=0,select_block=32,scope=model", "none"};
  for (int i = 0; i < 3; ++i) {
    test_model_spec spec = test_small_model(kAlike[i]);
    spec.layout = TEST_PAGED_16;
    test_model* m = test_model_create(&spec, (test_random){5});
    m->live[1]->view.block_table = m->live[0]->view.block_table;
    m->views[1] = m->live[1]->view;
    for (int round = 0; round < 3; ++round) {
      test_model_append(m, i == 2 ? 30 : round == 0 ? 90 : 33);
      kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
      EvictByTable(m, &report, kAlike[i]);
      cr_expect_eq(report.evicted, i < 2);
      test_model_check(m, kAlike[i]);
    }
    test_model_destroy(m);
  }
}

/* Keys rotate in place, to the same bytes as those that move. */
Test(sequence_tables, come_with_rotation) {
  static const char* const kTurns[] = {
      "knorm:budget=63,sink=0,select_block=16,scope=layer,rotate=yes",
      "streaming-llm:budget=50,sink=3,select_block=16,rotate=yes"};
  static const float inv_freq[8] = {1.0f,  0.3f,   0.1f,    0.03f,
                                    0.01f, 0.003f, 0.0011f, 0.0004f};
  for (int i = 0; i < 2; ++i) {
    test_model* both[2];
    for (int by_table = 0; by_table < 2; ++by_table) {
      test_model_spec spec = test_small_model("none");
      spec.layout = by_table ? TEST_PAGED_16 : TEST_TOKEN_MAJOR;
      test_model* m = both[by_table] =
          test_model_create(&spec, (test_random){i + 1});
      kvevict_geometry geometry = m->geometry;
      geometry.rope_inv_freq = inv_freq;
      geometry.rope_inv_freq_len = 8;
      EXPECT_OK(test_model_go_on(m, kTurns[i], &geometry, NULL));
      for (int round = 0; round < 3; ++round) {
        test_model_append(m, round == 0 ? 95 : 29);
        kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
        kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
        options.by_table = by_table;
        EXPECT_OK(test_model_evict(m, &options, &report));
        cr_expect_eq(report.evicted, 1);
      }
    }
    test_expect_same_tokens(both[1], both[0], kTurns[i]);
    for (uint32_t l = 0; l < 2; ++l) {
      test_expect_same_rows(both[1]->live[l], both[0]->live[l],
                            test_model_stored(both[1], l), kTurns[i]);
    }
    for (int m = 0; m < 2; ++m) test_model_destroy(both[m]);
  }
}
