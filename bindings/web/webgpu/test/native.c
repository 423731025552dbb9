/* What the native library makes of a layer, for tests of the WGSL kernels.
 *
 *   native score|evict POLICY n_q_heads n_kv_heads k_dim v_dim f32|f16 n_tokens
 *          n_query_rows none|scores|sums n_pairs half|interleaved
 *
 * stdin:  K, V [heads, tokens, dim]; f32 queries [n_q_heads, rows, k_dim]; f32
 *         [heads, tokens] of scores or attention sums; f32 inv_freq [n_pairs]
 * stdout: score: f32 [heads, tokens]; evict: u32 slots left, then K and V */
#include <kvevict/kvevict.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char* what) {
  fprintf(stderr, "native: %s\n", what);
  exit(1);
}

static void check(kvevict_status status) {
  if (status != KVEVICT_OK) fail(kvevict_last_error_message());
}

static void* read_bytes(size_t n) {
  void* const bytes = malloc(n + 1);
  if (bytes == NULL || fread(bytes, 1, n, stdin) != n) fail("short input");
  return bytes;
}

static void write_bytes(const void* bytes, size_t n) {
  if (fwrite(bytes, 1, n, stdout) != n) fail("cannot write");
}

static uint32_t number(const char* text) {
  return (uint32_t)strtoul(text, NULL, 10);
}

static void* workspace_of(const kvevict_plan* plan, kvevict_operation operation,
                          size_t* bytes) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  check(kvevict_plan_workspace(plan, operation, 0, &size));
  *bytes = (size.best_bytes + 63) / 64 * 64;
  return aligned_alloc(64, *bytes + 64);
}

static void evict(const kvevict_plan* plan, const kvevict_view* view,
                  const kvevict_signal_inputs* inputs, uint32_t n_tokens,
                  size_t k_bytes, size_t v_bytes) {
  kvevict_sequence* sequence;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  uint32_t n_left;
  size_t bytes;
  void* const workspace = workspace_of(plan, KVEVICT_OPERATION_EVICT, &bytes);
  check(kvevict_sequence_create(plan, &sequence));
  check(kvevict_sequence_append(sequence, n_tokens, NULL));
  options.inputs = inputs;
  options.inputs_len = 1;
  check(kvevict_sequence_evict(sequence, view, 1, &options, workspace, bytes,
                               NULL));
  check(kvevict_sequence_stored_length(sequence, 0, 0, &n_left));
  write_bytes(&n_left, sizeof(n_left));
  write_bytes((const void*)(uintptr_t)view->k.data, k_bytes);
  write_bytes((const void*)(uintptr_t)view->v.data, v_bytes);
  kvevict_sequence_destroy(sequence);
  free(workspace);
}

static void score(const kvevict_plan* plan, const kvevict_view* view,
                  const kvevict_signal_inputs* inputs, uint32_t n_tokens) {
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  size_t bytes;
  void* const workspace = workspace_of(plan, KVEVICT_OPERATION_SCORE, &bytes);
  job.n_tokens = n_tokens;
  job.view = view;
  job.inputs = inputs;
  job.scores_len = (size_t)view->n_kv_heads * n_tokens;
  job.scores = malloc(job.scores_len * sizeof(float));
  check(kvevict_score(plan, &job, 1, workspace, bytes, NULL));
  write_bytes(job.scores, job.scores_len * sizeof(float));
  free(job.scores);
  free(workspace);
}

int main(int argc, char** argv) {
  kvevict_context* context;
  kvevict_policy* policy;
  kvevict_plan* plan;
  kvevict_geometry model = KVEVICT_GEOMETRY_INIT;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  kvevict_view view = KVEVICT_VIEW_INIT;
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  kvevict_plane queries, scores;
  if (argc != 13) fail("12 arguments");
  const uint32_t n_q_heads = number(argv[3]), n_heads = number(argv[4]);
  const uint32_t k_dim = number(argv[5]), v_dim = number(argv[6]);
  const kvevict_dtype dtype =
      strcmp(argv[7], "f16") == 0 ? KVEVICT_DTYPE_F16 : KVEVICT_DTYPE_F32;
  const uint32_t n_tokens = number(argv[8]), n_rows = number(argv[9]);
  const size_t n_all = (size_t)n_heads * n_tokens;
  const size_t k_bytes = n_all * (size_t)kvevict_row_bytes(dtype, k_dim);
  const size_t v_bytes = n_all * (size_t)kvevict_row_bytes(dtype, v_dim);
  void* const k = read_bytes(k_bytes);
  void* const v = read_bytes(v_bytes);
  float* const q = read_bytes((size_t)n_q_heads * n_rows * k_dim * sizeof(*q));
  const int has_scores = strcmp(argv[10], "scores") == 0;
  const int has_sums = strcmp(argv[10], "sums") == 0;
  float* const given =
      read_bytes(has_scores || has_sums ? n_all * sizeof(*given) : 0);
  const uint32_t n_pairs = number(argv[11]);
  float* const inv_freq = read_bytes(n_pairs * sizeof(*inv_freq));

  layer.n_q_heads = n_q_heads;
  layer.n_kv_heads = n_heads;
  layer.k_head_dim = k_dim;
  layer.v_head_dim = v_dim;
  layer.k_dtype = layer.v_dtype = dtype;
  model.n_layers = 1;
  model.max_tokens = n_tokens;
  model.layers = &layer;
  model.layers_len = 1;
  model.rope_inv_freq = n_pairs == 0 ? NULL : inv_freq;
  model.rope_inv_freq_len = n_pairs;
  model.rope_layout = strcmp(argv[12], "interleaved") == 0
                          ? KVEVICT_ROPE_LAYOUT_INTERLEAVED
                          : KVEVICT_ROPE_LAYOUT_HALF;
  view.n_kv_heads = n_heads;
  view.k = kvevict_plane_head_major(k, dtype, n_tokens, k_dim);
  view.v = kvevict_plane_head_major(v, dtype, n_tokens, v_dim);
  queries = kvevict_plane_head_major(q, KVEVICT_DTYPE_F32, n_rows, k_dim);
  scores = kvevict_plane_head_major(given, KVEVICT_DTYPE_F32, n_tokens, 1);
  if (n_rows > 0) inputs.queries = &queries;
  inputs.n_query_rows = n_rows;
  if (has_scores) inputs.scores = &scores;
  if (has_sums) inputs.attention_sums = &scores;
  inputs.n_sum_heads = n_heads;

  check(kvevict_context_create(NULL, &context));
  check(kvevict_policy_create(argv[2], &policy));
  check(kvevict_plan_create(context, &model, policy, NULL, &plan));
  if (strcmp(argv[1], "evict") == 0) {
    evict(plan, &view, &inputs, n_tokens, k_bytes, v_bytes);
  } else {
    score(plan, &view, &inputs, n_tokens);
  }
  kvevict_plan_destroy(plan);
  kvevict_policy_destroy(policy);
  kvevict_context_destroy(context);
  free(k);
  free(v);
  free(q);
  free(given);
  free(inv_freq);
  return 0;
}
