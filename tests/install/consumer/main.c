/* A program outside the tree: evicts a small cache and looks at what is left. */
#include <kvevict/experimental.h>
#include <stdio.h>
#include <string.h>

enum { N_TOKENS = 6, N_KEEP = 4, HEAD_DIM = 8 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, kvevict_last_error_message());
  return 1;
}

int main(void) {
  static float k[N_TOKENS][HEAD_DIM], v[N_TOKENS][HEAD_DIM];
  static const float scores[N_TOKENS] = {0, 5, 1, 4, 3, 2};
  static const int32_t expected[N_KEEP] = {0, 1, 3, 5};
  /* 6 slots of one head need little scratch. */
  static union {
    double align[8192];
    char bytes[65536];
  } memory;
  kvevict_context* context = NULL;
  kvevict_plan* plan = NULL;
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  kvevict_move move = KVEVICT_MOVE_INIT;
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  kvevict_policy* policy = NULL;
  kvevict_view view;
  int32_t keep[N_KEEP];
  kvevict_workspace workspace_size = KVEVICT_WORKSPACE_INIT;
  char* workspace = memory.bytes + (64 - (uintptr_t)memory.bytes % 64) % 64;
  int t;

  if (kvevict_abi_version() != KVEVICT_ABI_VERSION) return fail("abi version");
  for (t = 0; t < N_TOKENS; ++t) k[t][0] = v[t][HEAD_DIM - 1] = (float)t;

  layer.n_q_heads = layer.n_kv_heads = 1;
  layer.k_head_dim = layer.v_head_dim = HEAD_DIM;
  geometry.n_layers = 1;
  geometry.max_tokens = N_TOKENS;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  if (kvevict_context_create(NULL, &context) ||
      kvevict_policy_create("custom:budget=4,sink=1,recent=1", &policy) ||
      kvevict_plan_create(context, &geometry, policy, NULL, &plan) ||
      kvevict_plan_selection(plan, 0, N_TOKENS, 0, &options, &lists) ||
      kvevict_select_workspace(context, N_TOKENS, lists.n_lists,
                               &workspace_size)) {
    return fail("setting up");
  }
  if (workspace_size.least_bytes > sizeof memory - 64) {
    return fail("workspace size");
  }
  options.scores = scores;
  options.scores_len = N_TOKENS;
  lists.slots = keep;
  lists.slots_len = N_KEEP;
  if (kvevict_select(context, &options, &lists, workspace,
                     workspace_size.least_bytes, NULL)) {
    return fail("select");
  }
  if (lists.count != N_KEEP || memcmp(keep, expected, sizeof keep) != 0) {
    return fail("keep list");
  }

  memset(&view, 0, sizeof view);
  view.struct_size = sizeof view;
  view.n_kv_heads = 1;
  view.k.data = (uintptr_t)k;
  view.k.token_stride_bytes = view.k.head_stride_bytes = sizeof k[0];
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = HEAD_DIM;
  view.v = view.k;
  view.v.data = (uintptr_t)v;
  move.n_tokens = N_TOKENS;
  move.view = &view;
  move.keep = &lists;
  if (kvevict_compact(context, &move, 1, NULL, 0, NULL)) {
    return fail("compact");
  }
  for (t = 0; t < N_KEEP; ++t) {
    if (k[t][0] != (float)expected[t] || v[t][HEAD_DIM - 1] != k[t][0]) {
      return fail("compacted rows");
    }
  }
  kvevict_plan_destroy(plan);
  kvevict_policy_destroy(policy);
  kvevict_context_destroy(context);
  printf("kvevict %s: kept slots 0 1 3 5\n", kvevict_version());
  return 0;
}
