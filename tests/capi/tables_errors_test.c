/* Evictions by table that are refused, and what a plan says of them. */
#include <string.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

/* All layers use one table, as in engines whose layers share block ids. */
static test_model* OneTable(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.layout = TEST_PAGED_16;
  test_model* m = test_model_create(&spec, (test_random){5});
  m->live[1]->view.block_table = m->live[0]->view.block_table;
  m->views[1] = m->live[1]->view;
  return m;
}

typedef struct refusal {
  const char* policy;
  test_layout layout;
  const char* message;
} refusal;

static void ExpectRefused(test_model* m, kvevict_status status,
                          const char* message) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.by_table = 1;
  test_cache* before[2] = {test_cache_clone(m->live[0]),
                           test_cache_clone(m->live[1])};
  const uint32_t n = test_model_stored(m, 0);
  EXPECT(test_model_evict(m, &options, NULL) == status &&
             strcmp(kvevict_last_error_message(), message) == 0,
         "\"%s\", not \"%s\"", kvevict_last_error_message(), message);
  cr_expect_eq(test_model_stored(m, 0), n);
  for (int l = 0; l < 2; ++l) {
    test_expect_same_bytes(m->live[l], before[l], message);
    test_cache_destroy(before[l]);
  }
}

Test(sequence_tables_errors, that_cannot_say_it_are_refused) {
  static const refusal kRefusals[] = {
      {"knorm:budget=40,sink=0,scope=layer", TEST_TOKEN_MAJOR,
       "views[0]: by_table: block_size is 0, and rows without blocks must "
       "move"},
      {"knorm:budget=40,sink=0,scope=layer", TEST_PAGED_3,
       "views[0]: by_table: select_block 1 is no multiple of block_size 3, "
       "so parts of blocks would go"},
      {"knorm:budget=40,sink=0,select_block=8,scope=layer", TEST_PAGED_16,
       "views[0]: by_table: select_block 8 is no multiple of block_size 16, "
       "so parts of blocks would go"},
      {"knorm:budget=40,sink=0,select_block=16", TEST_PAGED_16,
       "views[0]: by_table: block_table_head_stride is 0, but 2 heads keep "
       "lists of their own"},
      {"knorm:budget=40,sink=0,select_block=3,scope=layer", TEST_RING_PAGED_3,
       "views[0]: by_table: ring_slots 104 is not 0, and a ring may begin "
       "within a block"},
  };
  for (size_t i = 0; i < sizeof kRefusals / sizeof *kRefusals; ++i) {
    test_model_spec spec = test_small_model(kRefusals[i].policy);
    spec.layout = kRefusals[i].layout;
    test_model* m = test_model_create(&spec, (test_random){i});
    /* The answer does not depend on whether there is something to do. */
    for (int round = 0; round < 2; ++round) {
      test_model_append(m, round == 0 ? 5 : 80);
      ExpectRefused(m, KVEVICT_ERROR_UNSUPPORTED, kRefusals[i].message);
    }
    test_model_destroy(m);
  }
}

Test(sequence_tables_errors, that_overlap_are_refused) {
  test_model* m =
      OneTable("knorm:budget=63,sink=0,select_block=16,scope=layer");
  test_model_append(m, 90);
  ExpectRefused(m, KVEVICT_ERROR_UNSUPPORTED,
                "views[1]: by_table: block_table is also that of views[0], but "
                "the layers keep different tokens");
  test_model_destroy(m);

  m = OneTable("streaming-llm:sink=3,recent=41,select_block=16");
  test_model_append(m, 90);
  m->views[1].block_table = m->views[0].block_table + 1;
  --m->views[1].block_table_len;
  ExpectRefused(m, KVEVICT_ERROR_INVALID_ARGUMENT,
                "views[1]: by_table: block_table overlaps that of views[0]");
  test_model_destroy(m);

  /* These layers would keep the same had they begun with the same tokens. */
  m = OneTable("streaming-llm:sink=3,recent=41,select_block=16");
  int32_t positions[96];
  for (int32_t i = 0; i < 96; ++i) positions[i] = i;
  kvevict_position_lists layers[2];
  for (uint32_t l = 0; l < 2; ++l) {
    layers[l] = (kvevict_position_lists)KVEVICT_POSITION_LISTS_INIT;
    layers[l].n_lists = 1;
    layers[l].positions = positions;
    layers[l].positions_len = layers[l].count = 96 - 32 * l;
  }
  EXPECT_OK(kvevict_sequence_start(m->sequence, layers, 2, 96, NULL));
  ExpectRefused(m, KVEVICT_ERROR_UNSUPPORTED,
                "views[1]: by_table: block_table is also that of views[0], "
                "which keeps 32 of 96 tokens, not 32 of 64");
  test_model_destroy(m);
}

/* Shared blocks are not written to, so they may go or stay. Merging writes. */
Test(sequence_tables_errors, leave_shared_blocks_to_others) {
  for (int merges = 0; merges < 2; ++merges) {
    test_model_spec spec = test_small_model(
        merges
            ? "knorm:budget=63,sink=0,select_block=16,scope=layer,merge=pivot"
            : "knorm:budget=63,sink=0,select_block=16,scope=layer");
    spec.layout = TEST_PAGED_16;
    test_model* m = test_model_create(&spec, (test_random){9});
    test_model_append(m, 95);
    m->views[0].n_shared_blocks = m->views[1].n_shared_blocks = 4;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    cr_expect_eq(test_model_evict(m, &options, NULL),
                 KVEVICT_ERROR_INVALID_ARGUMENT);
    options.by_table = 1;
    cr_expect_eq(test_model_evict(m, &options, NULL),
                 merges ? KVEVICT_ERROR_INVALID_ARGUMENT : KVEVICT_OK);
    if (!merges) test_model_check(m, "shared blocks");
    test_model_destroy(m);
  }
}

typedef struct asked {
  const char* policy;
  uint32_t block, head_tables, layer_tables;
} asked;

Test(sequence_tables_errors, are_asked_of_the_plan) {
  static const asked kAsked[] = {
      {"streaming-llm:sink=3,recent=41,select_block=16", 16, 0, 0},
      {"knorm:budget=63,sink=0,select_block=32,scope=model", 32, 0, 0},
      {"knorm:budget=63,sink=0,select_block=32,scope=layer", 32, 0, 1},
      {"knorm:budget=63,sink=0", 1, 1, 1},
  };
  for (int i = 0; i < 4; ++i) {
    test_model* m = test_model_of(kAsked[i].policy, 1);
    kvevict_capabilities can = {.struct_size = sizeof can};
    EXPECT_OK(kvevict_plan_capabilities(m->plan, 1, &can));
    EXPECT(can.table_block == kAsked[i].block &&
               can.needs_head_tables == kAsked[i].head_tables &&
               can.needs_layer_tables == kAsked[i].layer_tables,
           "%s: %u, %u, %u", kAsked[i].policy, can.table_block,
           can.needs_head_tables, can.needs_layer_tables);
    test_model_destroy(m);
  }
}
