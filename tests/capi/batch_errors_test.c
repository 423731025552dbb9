/* One item of a batch is wrong: the message says which, and no item changes. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

enum { kItems = 3 };

typedef struct scene {
  kvevict_context* context;
  test_model* models[kItems];
  test_cache* before[kItems];
  test_saved saved[kItems];
  kvevict_sequence_eviction evictions[kItems];
  kvevict_sequence_tokens tokens[kItems];
  uint8_t* workspace;
  size_t workspace_bytes;
} scene;

static scene Begin(void) {
  static const char* const kPolicies[kItems] = {
      "knorm:budget=40", "snapkv:budget=40,window=8", "keydiff:budget=30"};
  scene s;
  memset(&s, 0, sizeof s);
  s.context = test_context();
  for (uint32_t i = 0; i < kItems; ++i) {
    test_model_spec spec = test_small_model(kPolicies[i]);
    spec.context = s.context;
    spec.n_layers = 1;
    s.models[i] = test_model_create(&spec, (test_random){40 + i});
    test_model_step(s.models[i], 60 + 10 * i);
    s.before[i] = test_cache_clone(s.models[i]->live[0]);
    s.saved[i] = test_save(s.models[i]->sequence);
    s.evictions[i] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
    s.evictions[i].sequence = s.models[i]->sequence;
    s.evictions[i].views = s.models[i]->views;
    s.evictions[i].views_len = 1;
    s.tokens[i] = (kvevict_sequence_tokens)KVEVICT_SEQUENCE_TOKENS_INIT;
    s.tokens[i].sequence = s.models[i]->sequence;
    s.tokens[i].n_tokens = 5;
  }
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_sequences_workspace(s.evictions, kItems, &size));
  s.workspace_bytes = size.best_bytes;
  s.workspace = aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
  return s;
}

static void ExpectUntouched(const scene* s) {
  for (uint32_t i = 0; i < kItems; ++i) {
    const test_saved now = test_save(s->models[i]->sequence);
    EXPECT(now.n_bytes == s->saved[i].n_bytes &&
               memcmp(now.data, s->saved[i].data, now.n_bytes) == 0,
           "items[%u]: its sequence has changed", i);
    free(now.data);
    test_expect_same_bytes(s->models[i]->live[0], s->before[i], "batch");
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EXPECT_OK(
        kvevict_sequence_report(s->models[i]->sequence, &report, NULL, 0));
    EXPECT(report.tokens_before == 0, "items[%u] has a report", i);
  }
}

static void End(scene* s) {
  for (uint32_t i = 0; i < kItems; ++i) {
    test_model_destroy(s->models[i]);
    test_cache_destroy(s->before[i]);
    free(s->saved[i].data);
  }
  free(s->workspace);
}

static kvevict_status Evict(const scene* s) {
  return kvevict_sequences_evict(s->evictions, kItems, s->workspace,
                                 s->workspace_bytes, NULL);
}

Test(batch_errors, an_eviction_that_cannot_be_leaves_all_untouched) {
  scene s = Begin();
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  const int32_t position = 999;
  options.protected_positions = &position;
  options.protected_positions_len = 1;
  s.evictions[2].options = &options;
  EXPECT_INVALID(Evict(&s), "items[2]: protected_positions[0] 999");
  s.evictions[2].options = NULL;
  s.evictions[2].views_len = 2;
  EXPECT_INVALID(Evict(&s), "items[2]: views_len 2 is not n_layers 1");
  s.evictions[2].views_len = 1;
  s.evictions[2].reserved = 1;
  EXPECT_INVALID(Evict(&s), "items[2]: item.reserved 1");
  s.evictions[2].reserved = 0;
  s.evictions[2].sequence = NULL;
  EXPECT_INVALID(Evict(&s), "items[2]: sequence is NULL");
  s.evictions[2].sequence = s.models[0]->sequence;
  EXPECT_INVALID(Evict(&s), "items[2]: sequence: items[0] has it too");
  s.evictions[2].sequence = s.models[2]->sequence;
  s.models[2]->views[0].k.data = 0;
  EXPECT_INVALID(Evict(&s), "items[2]: views[0]: k");
  s.models[2]->views[0] = s.models[2]->live[0]->view;
  s.workspace_bytes = 64;
  EXPECT_INVALID(Evict(&s), "items[0]: workspace_bytes 64");
  EXPECT_OK(kvevict_sequence_end_observing(s.models[1]->sequence));
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_sequences_workspace(s.evictions, kItems, &size));
  s.workspace_bytes = size.best_bytes;
  EXPECT_INVALID(Evict(&s), "items[1]: layer 0: the sequence has no query");
  ExpectUntouched(&s);
  /* Then it works. */
  test_model_observe(s.models[0], 59, 1);
  EXPECT_OK(kvevict_sequence_begin_observing(s.models[1]->sequence, NULL, 0));
  test_model_observe(s.models[1], 62, 8);
  EXPECT_OK(Evict(&s));
  for (uint32_t i = 0; i < kItems; ++i) {
    test_model_check(s.models[i], "after the refusals");
    cr_expect_eq(test_model_stored(s.models[i], 0), i == 2 ? 30 : 40);
  }
  End(&s);
}

/* A cache given twice would be moved twice. */
Test(batch_errors, caches_lie_apart) {
  scene s = Begin();
  s.evictions[2].views = s.models[0]->views;
  EXPECT_INVALID(Evict(&s), "items[0] and [2]: views[0].k of 60 tokens and",
                 "80 tokens overlap");
  kvevict_view shifted = s.models[0]->views[0];
  shifted.k.data += 59 * (uint64_t)shifted.k.token_stride_bytes;
  shifted.v.data = s.models[2]->views[0].v.data;
  s.evictions[2].views = &shifted;
  /* These rows begin at the first cache's last slot. */
  EXPECT_INVALID(Evict(&s), "items[0] and [2]: views[0].k");
  ExpectUntouched(&s);
  /* If neither moves rows, the overlap does no harm. */
  s.evictions[2].views = s.models[0]->views;
  for (uint32_t i = 0; i < kItems; ++i) {
    EXPECT_OK(kvevict_sequence_trim_to(s.models[i]->sequence, 20, NULL));
  }
  EXPECT_OK(Evict(&s));
  End(&s);
}

/* A workspace may not lie on another item's rows, even if that item loses none. */
Test(batch_errors, the_workspace_lies_apart_from_all_caches) {
  scene s = Begin();
  void* const own = s.workspace;
  for (uint32_t trimmed = 0; trimmed < 2; ++trimmed) {
    if (trimmed) {
      EXPECT_OK(kvevict_sequence_trim_to(s.models[2]->sequence, 20, NULL));
    }
    s.workspace =
        (void*)(uintptr_t)((s.models[2]->views[0].v.data + 64) / 64 * 64);
    EXPECT_INVALID(Evict(&s), "items[2]: workspace 0x", "overlaps views[0]");
    if (!trimmed) ExpectUntouched(&s);
  }
  s.workspace = own;
  EXPECT_OK(Evict(&s));
  End(&s);
}

/* One item would write over what another one saves. */
Test(batch_errors, memory_for_undos_lies_apart) {
  scene s = Begin();
  kvevict_evict_options options[kItems];
  size_t n_bytes[kItems], n_all = 0;
  for (uint32_t i = 0; i < kItems; ++i) {
    EXPECT_OK(kvevict_sequence_undo_bytes(s.models[i]->sequence,
                                          s.models[i]->views, 1, &n_bytes[i]));
    n_all += n_bytes[i];
    options[i] = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
    s.evictions[i].options = &options[i];
  }
  uint8_t* const memory = aligned_alloc(64, n_all);
  memset(memory, 0x5a, n_all);
  options[0].undo = memory;
  options[1].undo = memory + n_bytes[0] - 64;
  options[2].undo = memory + n_bytes[0] + n_bytes[1];
  for (uint32_t i = 0; i < kItems; ++i) options[i].undo_bytes = n_bytes[i];
  EXPECT_INVALID(Evict(&s), "items[0] and [1]: undo", "overlaps undo");
  options[1].undo = options[0].undo;
  EXPECT_INVALID(Evict(&s), "items[0] and [1]: undo", "overlaps undo");
  options[1].undo = (void*)((s.models[2]->views[0].k.data + 64) / 64 * 64);
  EXPECT_INVALID(Evict(&s), "items[1] and [2]: undo", "overlaps views[0]");
  for (size_t i = 0; i < n_all; ++i) {
    EXPECT(memory[i] == 0x5a, "byte %zu has been written", i);
  }
  ExpectUntouched(&s);
  options[1].undo = memory + n_bytes[0];
  EXPECT_OK(Evict(&s));
  for (uint32_t i = 0; i < kItems; ++i) {
    EXPECT_OK(kvevict_sequence_undo(s.models[i]->sequence, s.models[i]->views,
                                    1, options[i].undo, n_bytes[i], NULL));
    cr_expect_eq(test_model_stored(s.models[i], 0), 60 + 10 * i);
    test_model_check(s.models[i], "undone");
  }
  free(memory);
  End(&s);
}

Test(batch_errors, tokens_that_have_no_room_leave_all_as_it_was) {
  scene s = Begin();
  s.tokens[2].n_tokens = 21;
  EXPECT_INVALID(kvevict_sequences_append(s.tokens, kItems, NULL),
                 "items[2]: n_tokens 21 + 80 stored > max_tokens 100");
  s.tokens[2] = s.tokens[1];
  EXPECT_INVALID(kvevict_sequences_append(s.tokens, kItems, NULL),
                 "items[2]: sequence: items[1] has it too");
  kvevict_sequence_length lengths[kItems];
  for (uint32_t i = 0; i < kItems; ++i) {
    lengths[i] = (kvevict_sequence_length)KVEVICT_SEQUENCE_LENGTH_INIT;
    lengths[i].sequence = s.models[i]->sequence;
    lengths[i].new_length = (uint32_t[]){9, 0, 81}[i];
  }
  EXPECT_INVALID(kvevict_sequences_trim_to(lengths, kItems, NULL),
                 "items[2]: new_length 81 > logical length 80");
  ExpectUntouched(&s);
  lengths[2].new_length = 80;
  EXPECT_OK(kvevict_sequences_trim_to(lengths, kItems, NULL));
  uint32_t length = 0;
  EXPECT_OK(kvevict_sequence_logical_length(s.models[0]->sequence, &length));
  cr_expect_eq(length, 9);
  End(&s);
}

Test(batch_errors, of_observations_none_is_taken) {
  scene s = Begin();
  kvevict_sequence_observations items[kItems];
  const kvevict_plane queries = test_model_queries(s.models[1], 0, 0);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_observation shown = KVEVICT_OBSERVATION_INIT;
  inputs.queries = &queries;
  shown.inputs = &inputs;
  for (uint32_t i = 0; i < kItems; ++i) {
    items[i] =
        (kvevict_sequence_observations)KVEVICT_SEQUENCE_OBSERVATIONS_INIT;
    items[i].sequence = s.models[i]->sequence;
    items[i].n_rows = 1;
    items[i].observations = &shown;
    items[i].observations_len = 1;
  }
  items[2].reserved = 7;
  EXPECT_INVALID(kvevict_sequences_observe(items, kItems, NULL),
                 "items[2]: item.reserved 7");
  items[2].reserved = 0;
  items[2].observations = NULL;
  EXPECT_INVALID(kvevict_sequences_observe(items, kItems, NULL),
                 "items[2]: observations is NULL");
  items[2].observations_len = 0;
  items[2].sequence = NULL;
  EXPECT_INVALID(kvevict_sequences_observe(items, kItems, NULL),
                 "items[2]: sequence is NULL");
  /* The second model's window is still that of its 70 tokens. */
  EXPECT_OK(test_model_evict(s.models[1], NULL, NULL));
  items[2].sequence = s.models[2]->sequence;
  EXPECT_OK(kvevict_sequences_observe(items, kItems, NULL));
  End(&s);
}

Test(batch_errors, sequences_share_a_context) {
  scene s = Begin();
  test_model* other = test_model_of("none", 3);
  s.tokens[1].sequence = other->sequence;
  EXPECT_INVALID(kvevict_sequences_append(s.tokens, kItems, NULL),
                 "items[1]: sequence: its context is not that of items[0]");
  ExpectUntouched(&s);
  test_model_destroy(other);
  End(&s);
}

Test(batch_errors, no_items_do_nothing) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_sequences_append(NULL, 0, NULL));
  EXPECT_OK(kvevict_sequences_trim_to(NULL, 0, NULL));
  EXPECT_OK(kvevict_sequences_observe(NULL, 0, NULL));
  EXPECT_OK(kvevict_sequences_evict(NULL, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_sequences_workspace(NULL, 0, &size));
  cr_expect_eq(size.best_bytes, 0);
  EXPECT_INVALID(kvevict_sequences_workspace(NULL, 0, NULL), "out is NULL");
  EXPECT_INVALID(kvevict_sequences_workspace(NULL, 1, &size), "items is NULL");
  EXPECT_INVALID(kvevict_sequences_append(NULL, 1, NULL), "items is NULL");
  EXPECT_INVALID(kvevict_sequences_evict(NULL, 2, NULL, 0, NULL),
                 "items is NULL, but items_len is 2");
}

Test(batch_errors, items_are_versioned) {
  scene s = Begin();
  GROWN(kvevict_sequence_tokens) tokens;
  tokens.value = s.tokens[0];
  tokens.value.n_tokens = 0;
  EXPECT_CHECKS_STRUCT_SIZE(tokens,
                            kvevict_sequences_append(&tokens.value, 1, NULL));
  GROWN(kvevict_sequence_length) length;
  length.value = (kvevict_sequence_length)KVEVICT_SEQUENCE_LENGTH_INIT;
  length.value.sequence = s.models[0]->sequence;
  length.value.new_length = 60;
  EXPECT_CHECKS_STRUCT_SIZE(length,
                            kvevict_sequences_trim_to(&length.value, 1, NULL));
  GROWN(kvevict_sequence_eviction) eviction;
  eviction.value = s.evictions[0];
  EXPECT_CHECKS_STRUCT_SIZE(
      eviction, kvevict_sequences_evict(&eviction.value, 1, s.workspace,
                                        s.workspace_bytes, NULL));
  GROWN(kvevict_sequence_observations) observations;
  observations.value =
      (kvevict_sequence_observations)KVEVICT_SEQUENCE_OBSERVATIONS_INIT;
  observations.value.sequence = s.models[1]->sequence;
  EXPECT_CHECKS_STRUCT_SIZE(
      observations, kvevict_sequences_observe(&observations.value, 1, NULL));
  End(&s);
}
