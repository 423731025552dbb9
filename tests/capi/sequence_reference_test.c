/* Evictions by reference queries, alone and beside the window's. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/batch.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"

enum { kLayers = 2, kHeads = 2, kMostTokens = 140, kMostRows = 6 };

static const char* const kPolicies[] = {
    "snapkv:budget=40,window=8,reference=5",
    "snapkv:budget=40,window=8,reference=5,reference_weight=0.5",
    "snapkv:budget=40,window=8,reference=5,keep_window=no",
    "snapkv:budget=40,window=8,reference=4,heads=adaptive",
    "snapkv:budget=40,window=8,reference=4,reference_weight=0.25,rows=max,"
    "group=max,heads=adaptive",
    "snapkv:budget=40,window=8,reference=4,reference_weight=0.7,rows=max,"
    "pool=avg5,edge=mass,order=pool-rows,prior=mean",
    "tova:budget=40,reference=3,reference_weight=0.3",
    "pyramidkv:budget=40,window=8,reference=6,alpha=0.9",
    "r-kv:budget=40,window=8,reference=6,reference_weight=0.5,redundancy=0",
};

/* The scores by which a head keeps its tokens. */
static void FindScores(const test_model* m, uint32_t layer, uint32_t head,
                       double* scores) {
  if (m->policy.scope == KVEVICT_SCOPE_KV_HEAD) {
    test_model_oracle_scores_of(m, layer, head, scores);
    return;
  }
  const uint32_t n = test_model_stored_of(m, layer, head);
  double of_head[kMostTokens];
  for (uint32_t i = 0; i < n; ++i) scores[i] = 0.0;
  for (uint32_t h = 0; h < kHeads; ++h) {
    test_model_oracle_scores_of(m, layer, h, of_head);
    for (uint32_t i = 0; i < n; ++i) scores[i] += of_head[i] / kHeads;
  }
}

/* What a head held before an eviction. */
typedef struct held {
  uint32_t n;
  int32_t positions[kMostTokens];
  double scores[kMostTokens];
  uint8_t forced[kMostTokens];
} held;

/* No token that was lost scores more than one that was chosen. The tolerance is
 * some hundred roundings of the largest score. */
static void ExpectBest(const test_model* m, const held* before, uint32_t layer,
                       uint32_t head, const char* what) {
  int32_t kept[kMostTokens];
  const uint32_t n_kept = test_model_stored_of(m, layer, head);
  test_model_positions(m, layer, head, kept);
  double least = INFINITY, most = -INFINITY, largest = 0.0;
  uint32_t next = 0;
  for (uint32_t i = 0; i < before->n; ++i) {
    const double score = before->scores[i];
    const bool stays =
        next < n_kept && kept[next] == before->positions[i] && ++next > 0;
    if (isfinite(score)) largest = fmax(largest, fabs(score));
    EXPECT(stays || !before->forced[i], "%s: layer %u, head %u lost token %d",
           what, layer, head, before->positions[i]);
    if (before->forced[i]) continue;
    if (stays) least = fmin(least, score);
    if (!stays) most = fmax(most, score);
  }
  EXPECT(next == n_kept, "%s: layer %u, head %u kept tokens that it had not",
         what, layer, head);
  EXPECT(n_kept < before->n, "%s: layer %u, head %u lost nothing", what, layer,
         head);
  EXPECT(least >= most - 3e-5 * largest,
         "%s: layer %u, head %u kept a score of %g and lost one of %g", what,
         layer, head, least, most);
}

static void Live(const char* policy, test_layout layout) {
  test_model_spec spec = test_small_model(policy);
  spec.layout = layout;
  spec.n_layers = kLayers;
  spec.max_positions = 240;
  spec.n_companions = 1;
  spec.n_threads = 1 + (uint32_t)layout % 3;
  test_model* m = test_model_create(&spec, (test_random){17});
  static held before[kLayers][kHeads];
  int32_t positions[kMostRows];
  for (uint32_t round = 0; round < 4; ++round) {
    test_model_step(m, round == 0 ? 90 : 41);
    char what[160];
    snprintf(what, sizeof what, "%s, %s, eviction %u", policy,
             test_layout_name(layout), round);
    /* Queries that come later, of positions behind the end and among the tokens. */
    m->reference_first = m->n_seen;
    m->reference_positions = round % 2 == 0 ? NULL : positions;
    for (uint32_t r = 0; r < kMostRows; ++r) {
      positions[r] =
          (int32_t)(r % 2 == 0 ? m->n_seen + r : m->n_seen * r / kMostRows);
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        held* const b = &before[l][h];
        b->n = test_model_stored_of(m, l, h);
        test_model_positions(m, l, h, b->positions);
        FindScores(m, l, h, b->scores);
        test_model_forced(m, l, h, &options, b->forced);
      }
    }
    EXPECT_OK(test_model_evict(m, &options, NULL));
    test_model_check(m, what);
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        ExpectBest(m, &before[l][h], l, h, what);
      }
    }
  }
  test_model_destroy(m);
}

Test(sequence, reference_queries_choose_what_stays) {
  for (size_t i = 0; i < sizeof kPolicies / sizeof *kPolicies; ++i) {
    for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
      Live(kPolicies[i], (test_layout)layout);
    }
  }
}

/* Alone they need no observed queries; beside the window's they do. */
Test(sequence, reference_queries_alone_need_no_window) {
  const char* const kBoth[] = {
      "snapkv:budget=40,window=8,reference=5",
      "snapkv:budget=40,window=8,reference=5,reference_weight=0.5"};
  for (int i = 0; i < 2; ++i) {
    test_model* m = test_model_of(kBoth[i], 18);
    EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
    test_model_append(m, 90);
    m->reference_first = 0;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    if (i == 0) {
      EXPECT_OK(test_model_evict(m, &options, NULL));
    } else {
      EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 0",
                     "observing");
    }
    EXPECT(test_model_stored(m, 0) == (i == 0 ? 40u : 90u), "%u stored",
           test_model_stored(m, 0));
    test_model_check(m, kBoth[i]);
    test_model_destroy(m);
  }
}

/* The sequence's memory holds no queries if none are read. */
Test(sequence, reference_queries_alone_take_no_query_memory) {
  test_model* m = test_model_of("snapkv:window=8,reference=5", 19);
  kvevict_workspace memory = {.struct_size = sizeof memory};
  EXPECT_OK(
      kvevict_plan_workspace(m->plan, KVEVICT_OPERATION_OBSERVE, 0, &memory));
  EXPECT(memory.best_bytes == 0, "%zu bytes", memory.best_bytes);
  test_model_destroy(m);
}

Test(sequence, reference_queries_are_checked) {
  test_model_spec spec =
      test_small_model("snapkv:budget=40,window=8,reference=5");
  test_model* m = test_model_create(&spec, (test_random){20});
  test_model_append(m, 90);
  int32_t positions[5] = {0, 1, 2, 3, -4};
  m->reference_positions = positions;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_model_give_reference(m, &inputs, &options);
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 0",
                 "reference_positions[4] -4 < 0");
  positions[4] = 4;
  inputs.planes[1].dtype = KVEVICT_DTYPE_BF16;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "reference_queries.dtype");
  inputs.planes[1].dtype = spec.q_dtype;
  inputs.inputs[1].reference_queries = NULL;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "inputs.reference_queries is NULL", "reference 5");
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "inputs.reference_queries is NULL");
  EXPECT(test_model_stored(m, 0) == 90, "%u stored", test_model_stored(m, 0));
  test_model_check(m, "after errors");
  inputs.inputs[1].reference_queries = &inputs.planes[1];
  EXPECT_OK(test_model_evict(m, &options, NULL));
  /* Within the budget nothing scores, and nothing is needed. */
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* A batch evicts as its sequences do by themselves. */
Test(sequence, reference_queries_in_a_batch) {
  test_model_spec spec = test_small_model(
      "snapkv:budget=40,window=8,reference=5,reference_weight=0.5");
  test_model* alone[2];
  test_model* batched[2];
  test_inputs inputs[4];
  kvevict_evict_options options[4];
  for (uint32_t i = 0; i < 4; ++i) {
    test_model** const m = i < 2 ? &alone[i] : &batched[i - 2];
    spec.context = i < 3 ? NULL : batched[0]->context;
    *m = test_model_create(&spec, (test_random){21 + i % 2});
    test_model_step(*m, 80 + 10 * (i % 2));
    (*m)->reference_first = (*m)->n_seen;
    options[i] = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
    test_model_give_reference(*m, &inputs[i], &options[i]);
    if (i < 2) EXPECT_OK(test_model_evict(*m, &options[i], NULL));
  }
  kvevict_sequence_eviction items[2];
  for (uint32_t i = 0; i < 2; ++i) {
    items[i] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
    items[i].sequence = batched[i]->sequence;
    items[i].views = batched[i]->views;
    items[i].views_len = spec.n_layers;
    items[i].options = &options[2 + i];
  }
  EXPECT_OK(kvevict_sequences_evict(items, 2, batched[0]->workspace,
                                    batched[0]->workspace_bytes, NULL));
  for (uint32_t i = 0; i < 2; ++i) {
    test_expect_same_tokens(alone[i], batched[i], "in a batch");
    test_model_check(batched[i], "in a batch");
    test_model_destroy(alone[i]);
  }
  test_model_destroy(batched[1]);
  test_model_destroy(batched[0]);
}
