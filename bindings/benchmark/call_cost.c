/* What a call costs in C: the languages' benchmarks are compared with it. Prints
 * "name nanoseconds" for their cases. */
#define _POSIX_C_SOURCE 199309L
#include <kvevict/kvevict.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LAYERS = 2, QH = 8, KVH = 2, D = 64, TOKENS = 256, WINDOW = 8 };

static kvevict_plan* plan;
static kvevict_sequence* sequence;
static kvevict_view views[LAYERS];
static kvevict_plane queries;
static kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
static float scores[KVH * TOKENS];
static void* workspace;
static size_t workspace_bytes;
static volatile uint32_t sink;

static void check(kvevict_status status) {
  if (status == KVEVICT_OK) return;
  fprintf(stderr, "%s\n", kvevict_last_error_message());
  exit(1);
}

static void no_op(void) { sink = kvevict_abi_version(); }

static void length(void) {
  uint32_t n;
  check(kvevict_sequence_stored_length(sequence, 0, 0, &n));
  sink = n;
}

static void score(void) {
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = TOKENS, job.view = &views[0], job.inputs = &inputs;
  job.scores = scores, job.scores_len = KVH * TOKENS;
  check(kvevict_score(plan, &job, 1, workspace, workspace_bytes, NULL));
}

/* A whole request forgets, observes, appends and evicts. */
static void evict(void) {
  check(kvevict_sequence_reset(sequence, NULL));
  for (uint32_t l = 0; l < LAYERS; ++l) {
    kvevict_observation shown = KVEVICT_OBSERVATION_INIT;
    shown.layer = l, shown.inputs = &inputs;
    check(kvevict_sequence_observe(sequence, &shown, 1, WINDOW, TOKENS - WINDOW,
                                   NULL));
  }
  check(kvevict_sequence_append(sequence, TOKENS, NULL));
  check(kvevict_sequence_evict(sequence, views, LAYERS, NULL, workspace,
                               workspace_bytes, NULL));
}

/* The best of seven batches of 20 ms. */
static void measure(const char* name, void (*run)(void)) {
  double best = 1e30;
  for (int batch = 0; batch < 7; ++batch) {
    struct timespec begin, end;
    double ns;
    long calls = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
      for (int i = 0; i < 64; ++i) run();
      calls += 64;
      clock_gettime(CLOCK_MONOTONIC, &end);
      ns = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
    } while (ns < 2e7);
    if (ns / calls < best) best = ns / calls;
  }
  printf("%s %.1f\n", name, best);
}

static kvevict_plane rows(int heads) {
  size_t elements = (size_t)TOKENS * heads * D;
  float* data = malloc(elements * sizeof(float));
  for (size_t i = 0; i < elements; ++i) data[i] = (i * 37 % 101) / 50.0f - 1;
  kvevict_plane plane = {.data = (uintptr_t)data, .dtype = KVEVICT_DTYPE_F32};
  plane.token_stride_bytes = heads * D * 4, plane.head_stride_bytes = D * 4;
  plane.head_dim = D;
  return plane;
}

int main(void) {
  kvevict_context* context;
  kvevict_policy* policy;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  kvevict_geometry model = KVEVICT_GEOMETRY_INIT;
  kvevict_workspace evicting = KVEVICT_WORKSPACE_INIT;
  kvevict_workspace scoring = KVEVICT_WORKSPACE_INIT;
  layer.n_q_heads = QH, layer.n_kv_heads = KVH;
  layer.k_head_dim = layer.v_head_dim = D;
  model.n_layers = LAYERS, model.max_tokens = TOKENS;
  model.layers = &layer, model.layers_len = 1;
  check(kvevict_context_create(NULL, &context));
  check(kvevict_policy_create("snapkv:budget=64,window=8", &policy));
  check(kvevict_plan_create(context, &model, policy, NULL, &plan));
  kvevict_policy_destroy(policy);
  check(kvevict_sequence_create(plan, &sequence));
  check(kvevict_sequence_begin_observing(sequence, NULL, 0));
  check(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT, 0, &evicting));
  check(kvevict_plan_workspace(plan, KVEVICT_OPERATION_SCORE, 0, &scoring));
  workspace_bytes = evicting.best_bytes > scoring.best_bytes
                        ? evicting.best_bytes
                        : scoring.best_bytes;
  workspace =
      aligned_alloc(evicting.alignment, (workspace_bytes + 63) / 64 * 64);
  queries = rows(QH), inputs.queries = &queries;
  for (int l = 0; l < LAYERS; ++l) {
    views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    views[l].n_kv_heads = KVH, views[l].k = rows(KVH), views[l].v = rows(KVH);
  }
  measure("no-op", no_op);
  measure("length", length);
  measure("score", score);
  measure("evict", evict);
  return 0;
}
