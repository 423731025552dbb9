/* Prints what the native library does, a line of JSON for each policy: what it resolves to,
 * the scores of one layer, and the positions that two evictions leave. */
#include <kvevict/all.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { L = 3, QH = 4, KVH = 2, D = 24, MAX = 256, FIRST = 130, SECOND = 50 };

static const char* const kPolicies[] = {
    "streaming-llm:budget=30",
    "snapkv:budget=30,window=8",
    "snapkv:budget=0.4,window=16,pool=max5,group=max,scope=layer",
    "pyramidkv:budget=40,window=8,alpha=0.5",
    "tova:budget=30",
    "knorm:budget=30",
    "keydiff:budget=30",
    "lagkv:budget=40,block=16",
    "cur:budget=30",
    "r-kv:budget=30",
    "cake:budget=30,window=8",
    "random:budget=30,seed=5",
};

static float k[L][MAX][KVH][D], v[L][MAX][KVH][D], q[L][MAX][QH][D];
static float scores[KVH * MAX];
static uint32_t state;

static void check(kvevict_status status) {
  if (status == KVEVICT_OK) return;
  fprintf(stderr, "%s\n", kvevict_last_error_message());
  exit(1);
}

/* Numbers that are the same in every language. */
static float next(void) {
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / 4194304.0f - 2.0f;
}

static void fill(float* rows, int n) {
  for (int i = 0; i < n; ++i) rows[i] = next();
}

static kvevict_plane plane(const void* data, int heads) {
  return kvevict_plane_token_major(data, KVEVICT_DTYPE_F32, heads, D);
}

/* Tokens first .. first + n - 1: rows to the slots that are free, and queries. */
static void step(kvevict_sequence* s, int first, int n) {
  for (uint32_t l = 0; l < L; ++l) {
    uint32_t slot;
    check(kvevict_sequence_stored_length(s, l, 0, &slot));
    fill(k[l][slot][0], n * KVH * D);
    fill(v[l][slot][0], n * KVH * D);
    fill(q[l][first][0], n * QH * D);
    kvevict_plane queries = plane(q[l][first], QH);
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    kvevict_observation shown = KVEVICT_OBSERVATION_INIT;
    inputs.queries = &queries, shown.layer = l, shown.inputs = &inputs;
    check(kvevict_sequence_observe(s, &shown, 1, n, first, NULL));
  }
  check(kvevict_sequence_append(s, n, NULL));
}

static void print_positions(const kvevict_sequence* s, const char* name) {
  printf(",\"%s\":[", name);
  for (int i = 0; i < L * KVH; ++i) {
    int32_t positions[MAX];
    size_t n;
    check(kvevict_sequence_keep_positions(s, i / KVH, i % KVH, positions, MAX,
                                          &n));
    printf("%s[", i == 0 ? "" : ",");
    for (size_t j = 0; j < n; ++j)
      printf("%s%d", j == 0 ? "" : ",", positions[j]);
    printf("]");
  }
  printf("]");
}

static void print_scores(const kvevict_plan* plan, const kvevict_view* view,
                         uint32_t n_query_rows) {
  kvevict_workspace need = KVEVICT_WORKSPACE_INIT;
  kvevict_plane queries = plane(q[1][FIRST - n_query_rows], QH);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  inputs.queries = &queries, inputs.n_query_rows = n_query_rows;
  job.layer = 1, job.n_tokens = FIRST, job.view = view;
  job.inputs = n_query_rows == 0 ? NULL : &inputs;
  job.scores = scores, job.scores_len = (size_t)KVH * FIRST;
  check(kvevict_plan_workspace(plan, KVEVICT_OPERATION_SCORE, 0, &need));
  void* memory = aligned_alloc(64, (need.best_bytes + 64) / 64 * 64);
  check(kvevict_score(plan, &job, 1, memory, need.best_bytes, NULL));
  free(memory);
  printf(",\"scores\":[");
  for (int i = 0; i < KVH * FIRST; ++i) {
    printf("%s%.9g", i == 0 ? "" : ",", isinf(scores[i]) ? 1e300 : scores[i]);
  }
  printf("]");
}

int main(void) {
  kvevict_context* context;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  kvevict_geometry model = KVEVICT_GEOMETRY_INIT;
  layer.n_q_heads = QH, layer.n_kv_heads = KVH;
  layer.k_head_dim = layer.v_head_dim = D;
  model.n_layers = L, model.max_tokens = MAX, model.layers = &layer,
  model.layers_len = 1;
  check(kvevict_context_create(NULL, &context));
  for (size_t p = 0; p < sizeof kPolicies / sizeof kPolicies[0]; ++p) {
    kvevict_policy* policy;
    kvevict_plan* plan;
    kvevict_sequence* s;
    kvevict_workspace need = KVEVICT_WORKSPACE_INIT;
    kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
    uint32_t budgets[L];
    kvevict_view views[L];
    state = 7;
    check(kvevict_policy_create(kPolicies[p], &policy));
    check(kvevict_policy_resolve(policy, FIRST, &resolved));
    check(kvevict_plan_create(context, &model, policy, NULL, &plan));
    check(kvevict_sequence_create(plan, &s));
    check(kvevict_sequence_begin_observing(s, NULL, 0));
    check(kvevict_plan_workspace(plan, KVEVICT_OPERATION_EVICT, 0, &need));
    void* memory = aligned_alloc(64, (need.best_bytes + 64) / 64 * 64);
    for (int l = 0; l < L; ++l) {
      views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
      views[l].n_kv_heads = KVH, views[l].k = plane(k[l], KVH),
      views[l].v = plane(v[l], KVH);
    }
    printf("{\"policy\":\"%s\",\"resolved\":[%u,%u,%u,%u,%u]", kPolicies[p],
           resolved.budget, resolved.n_sink, resolved.n_recent,
           resolved.n_selected, resolved.n_query_rows);
    if (kvevict_policy_layer_budgets(policy, FIRST, budgets, L) == KVEVICT_OK) {
      printf(",\"budgets\":[%u,%u,%u]", budgets[0], budgets[1], budgets[2]);
    } /* scores decide cake's */
    step(s, 0, FIRST);
    if (p > 0)
      print_scores(plan, &views[1], resolved.n_query_rows); /* 0 has none */
    check(kvevict_sequence_evict(s, views, L, NULL, memory, need.best_bytes,
                                 NULL));
    print_positions(s, "first");
    step(s, FIRST, SECOND);
    check(kvevict_sequence_evict(s, views, L, NULL, memory, need.best_bytes,
                                 NULL));
    print_positions(s, "second");
    printf("}\n");
    free(memory);
    kvevict_sequence_destroy(s), kvevict_plan_destroy(plan),
        kvevict_policy_destroy(policy);
  }
  kvevict_context_destroy(context);
}
