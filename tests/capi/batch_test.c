/* Batch calls give byte for byte what single calls give. */
#include <stdio.h>
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

enum { kMost = 6, kSlots = 120, kPositions = 500, kGuardBytes = 4096 };

/* CUDA captures evictions by the first four, whose scores decide nothing, in any layout. */
static const char* const kPolicies[] = {
    "none",
    "streaming-llm:budget=40,sink=4",
    "random:budget=24,scope=model",
    "random:budget=36",
    "snapkv:budget=40,sink=2,window=8",
    "snapkv:budget=40,sink=2,window=8,heads=adaptive",
    "tova:budget=30",
    "keydiff:budget=0.4,sink=1,margin=9",
    "r-kv:budget=32,window=4,every=5",
    "cake:budget=40,window=4",
    "knorm:budget=40,sink=2,merge=values",
    "knorm:budget=60,chunk=48",
    "knorm:budget=30,prompt=beside,select_block=4"};
enum { kPoliciesLen = sizeof kPolicies / sizeof *kPolicies, kCaptured = 4 };

/* Each sequence exists twice: for single calls and for batch calls. */
typedef struct trial {
  uint32_t n;
  kvevict_context* context;
  bool captures; /* on CUDA: appends and evictions are launched as graphs */
  test_model* single[kMost];
  test_model* batch[kMost];
} trial;

static trial Begin(test_random* random, bool captures) {
  trial t = {.n = test_random_between(random, 1, kMost)};
  t.context = test_device_context();
  t.captures = captures;
  for (uint32_t i = 0; i < t.n; ++i) {
    test_model_spec spec = test_small_model(kPolicies[test_random_below(
        random, t.captures ? kCaptured : kPoliciesLen)]);
    spec.context = t.context;
    spec.n_layers = test_random_between(random, 1, 3);
    spec.max_tokens = test_random_between(random, 100, kSlots);
    spec.max_positions = kPositions;
    spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
    spec.n_companions = test_random_below(random, 3);
    const test_random seed = {test_random_u64(random)};
    t.single[i] = test_model_create(&spec, seed);
    t.batch[i] = test_model_create(&spec, seed);
    if (!t.captures) continue;
    EXPECT_OK(kvevict_context_prepare(t.context, t.batch[i]->plan));
  }
  return t;
}

static void End(trial* t) {
  for (uint32_t i = 0; i < t->n; ++i) {
    test_model_destroy(t->single[i]);
    test_model_destroy(t->batch[i]);
  }
  kvevict_context_destroy(t->context);
}

/* ---- The calls, for all ---- */

static void Observe(test_model* const* models, uint32_t n,
                    const uint32_t* n_rows) {
  kvevict_plane planes[kMost][TEST_MAX_LAYERS];
  kvevict_signal_inputs inputs[kMost][TEST_MAX_LAYERS];
  kvevict_observation shown[kMost][TEST_MAX_LAYERS];
  kvevict_sequence_observations items[kMost];
  for (uint32_t i = 0; i < n; ++i) {
    const test_model* m = models[i];
    for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
      planes[i][l] = test_model_queries(m, l, m->n_seen);
      inputs[i][l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
      inputs[i][l].queries = &planes[i][l];
      shown[i][l] = (kvevict_observation)KVEVICT_OBSERVATION_INIT;
      shown[i][l].layer = l;
      shown[i][l].inputs = &inputs[i][l];
    }
    items[i] =
        (kvevict_sequence_observations)KVEVICT_SEQUENCE_OBSERVATIONS_INIT;
    items[i].sequence = m->sequence;
    items[i].n_rows = n_rows[i];
    items[i].observations = shown[i];
    items[i].observations_len = m->spec.n_layers;
  }
  EXPECT_OK(kvevict_sequences_observe(items, n, NULL));
}

/* Does the work of a call at once, or by a graph. EXPECT_OK() waits for the device,
 * which a capture forbids, so the queued functions do not use it. */
static void Work(test_queue queue, void* call, bool captures) {
  if (!captures) {
    queue(call, NULL);
    test_wait();
    return;
  }
  void* const graph = test_capture(queue, call);
  test_launch(graph);
  test_forget_graph(graph);
}

typedef struct appends {
  kvevict_sequence_tokens items[kMost];
  uint32_t n;
} appends;

static void QueueAppends(void* call, kvevict_stream stream) {
  const appends* const a = call;
  const kvevict_status status =
      kvevict_sequences_append(a->items, a->n, stream);
  EXPECT(status == KVEVICT_OK, "%s", kvevict_last_error_message());
}

static void Append(test_model* const* models, uint32_t n,
                   const uint32_t* n_tokens, bool captures) {
  appends a = {.n = n};
  for (uint32_t i = 0; i < n; ++i) {
    test_model_store(models[i], n_tokens[i]);
    a.items[i] = (kvevict_sequence_tokens)KVEVICT_SEQUENCE_TOKENS_INIT;
    a.items[i].sequence = models[i]->sequence;
    a.items[i].n_tokens = n_tokens[i];
  }
  Work(QueueAppends, &a, captures);
  for (uint32_t i = 0; i < n; ++i) models[i]->n_seen += n_tokens[i];
}

static void Trim(test_model* const* models, uint32_t n,
                 const uint32_t* lengths) {
  kvevict_sequence_length items[kMost];
  for (uint32_t i = 0; i < n; ++i) {
    items[i] = (kvevict_sequence_length)KVEVICT_SEQUENCE_LENGTH_INIT;
    items[i].sequence = models[i]->sequence;
    items[i].new_length = lengths[i];
  }
  EXPECT_OK(kvevict_sequences_trim_to(items, n, NULL));
  for (uint32_t i = 0; i < n; ++i) models[i]->n_seen = lengths[i];
}

typedef struct evictions {
  kvevict_sequence_eviction items[kMost];
  uint32_t n;
  void* workspace;
  size_t n_bytes;
} evictions;

static void QueueEvictions(void* call, kvevict_stream stream) {
  const evictions* const e = call;
  const kvevict_status status =
      kvevict_sequences_evict(e->items, e->n, e->workspace, e->n_bytes, stream);
  EXPECT(status == KVEVICT_OK, "%s", kvevict_last_error_message());
}

/* Evicts in the least workspace or in the best one. */
static void Evict(test_model* const* models, uint32_t n, bool best,
                  bool captures) {
  evictions e = {.n = n};
  for (uint32_t i = 0; i < n; ++i) {
    e.items[i] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
    e.items[i].sequence = models[i]->sequence;
    e.items[i].views = models[i]->views;
    e.items[i].views_len = models[i]->spec.n_layers;
  }
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_sequences_workspace(e.items, n, &size));
  const size_t n_bytes = best ? size.best_bytes : size.least_bytes;
  uint8_t* const workspace = test_workspace_memory(n_bytes + kGuardBytes);
  memset(workspace, TEST_GUARD, n_bytes + kGuardBytes);
  e.workspace = workspace;
  e.n_bytes = n_bytes;
  Work(QueueEvictions, &e, captures);
  EXPECT(test_is_filled(workspace + n_bytes, kGuardBytes),
         "written beyond a workspace of %zu bytes", n_bytes);
  free(workspace);
}

static void ExpectSame(const test_model* a, const test_model* b) {
  const char* what = a->spec.policy;
  kvevict_evict_report reports[2] = {KVEVICT_EVICT_REPORT_INIT,
                                     KVEVICT_EVICT_REPORT_INIT};
  EXPECT_OK(kvevict_sequence_report(a->sequence, &reports[0], NULL, 0));
  EXPECT_OK(kvevict_sequence_report(b->sequence, &reports[1], NULL, 0));
  EXPECT(memcmp(&reports[0], &reports[1], sizeof reports[0]) == 0,
         "%s: the reports differ", what);
  test_expect_same_tokens(a, b, what);
  for (uint32_t l = 0; l < a->spec.n_layers; ++l) {
    test_expect_same_bytes(a->live[l], b->live[l], what);
  }
  const test_saved saved[2] = {test_save(a->sequence), test_save(b->sequence)};
  EXPECT(saved[0].n_bytes == saved[1].n_bytes &&
             memcmp(saved[0].data, saved[1].data, saved[0].n_bytes) == 0,
         "%s: the states differ", what);
  free(saved[0].data);
  free(saved[1].data);
}

static void Turn(trial* t, uint32_t* lengths, test_random* random) {
  uint32_t n_tokens[kMost], back[kMost];
  for (uint32_t i = 0; i < t->n; ++i) {
    uint32_t longest = 0;
    for (uint32_t l = 0; l < t->single[i]->spec.n_layers; ++l) {
      const uint32_t stored = test_model_stored(t->single[i], l);
      if (stored > longest) longest = stored;
    }
    const uint32_t room = t->single[i]->spec.max_tokens - longest;
    const uint32_t left = kPositions - t->single[i]->n_seen;
    const uint32_t most = room < left ? room : left;
    n_tokens[i] = test_random_below(random, (most < 50 ? most : 50) + 1);
    /* Windows are whole from the first eviction on. */
    if (t->single[i]->n_seen == 0 && n_tokens[i] < 10) n_tokens[i] = 10;
    test_model_step(t->single[i], n_tokens[i]);
  }
  Observe(t->batch, t->n, n_tokens);
  Append(t->batch, t->n, n_tokens, t->captures);
  const bool trims = test_random_below(random, 3) == 0;
  for (uint32_t i = 0; trims && i < t->n; ++i) {
    /* Windows keep their rows unless something pushed them out. */
    const bool may = strcmp(t->single[i]->spec.policy, kPolicies[1]) == 0;
    back[i] =
        may ? test_random_between(random, lengths[i], t->single[i]->n_seen)
            : t->single[i]->n_seen;
    EXPECT_OK(kvevict_sequence_trim_to(t->single[i]->sequence, back[i], NULL));
    t->single[i]->n_seen = back[i];
  }
  if (trims) Trim(t->batch, t->n, back);
  if (test_random_below(random, 4) == 0) {
    const uint32_t i = test_random_below(random, t->n);
    const kvevict_status status =
        kvevict_sequence_end_prompt(t->single[i]->sequence);
    EXPECT(kvevict_sequence_end_prompt(t->batch[i]->sequence) == status,
           "the prompt has ended in one of both");
  }
  for (uint32_t i = 0; i < t->n; ++i) {
    EXPECT_OK(test_model_evict(t->single[i], NULL, NULL));
  }
  Evict(t->batch, t->n, test_random_coin(random), t->captures);
  for (uint32_t i = 0; i < t->n; ++i) {
    ExpectSame(t->single[i], t->batch[i]);
    lengths[i] = t->single[i]->n_seen;
  }
}

Test(batch, equals_single_calls) {
  test_random random = test_random_start("batch");
  bool captures = false;
  for (uint32_t i = 0; i < 30; ++i) {
    if (!test_runs(i)) continue;
    trial t = Begin(&random, captures);
    captures = test_on_cuda() && !captures;
    uint32_t lengths[kMost] = {0};
    for (int turn = 0; turn < 6; ++turn) Turn(&t, lengths, &random);
    for (uint32_t j = 0; j < t.n; ++j) {
      if (strstr(t.batch[j]->spec.policy, "merge") != NULL) continue;
      test_model_check(t.batch[j], t.batch[j]->spec.policy);
    }
    End(&t);
  }
}

/* The order of the items does not matter. */
Test(batch, workspaces_are_the_largest_of_any) {
  test_random random = test_random_start("batch workspaces");
  for (int i = 0; i < 20; ++i) {
    trial t = Begin(&random, false);
    kvevict_sequence_eviction items[kMost];
    size_t least = 0, best = 0;
    for (uint32_t j = 0; j < t.n; ++j) {
      const uint32_t n = test_random_between(&random, 10, 90);
      test_model_step(t.batch[j], n);
      const kvevict_workspace one =
          test_workspace(t.batch[j]->plan, KVEVICT_OPERATION_EVICT, n);
      least = one.least_bytes > least ? one.least_bytes : least;
      best = one.best_bytes > best ? one.best_bytes : best;
      items[j] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
      items[j].sequence = t.batch[j]->sequence;
    }
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    EXPECT_OK(kvevict_sequences_workspace(items, t.n, &size));
    cr_expect_eq(size.least_bytes, least);
    cr_expect_eq(size.best_bytes, best);
    cr_expect_eq(size.alignment, 64);
    End(&t);
  }
}
