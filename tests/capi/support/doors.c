#include "tests/capi/support/doors.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"

kvevict_keep_lists test_lists(const int32_t* slots, uint32_t n,
                              uint32_t n_lists) {
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = n_lists;
  lists.slots = (int32_t*)slots;
  lists.slots_len = (size_t)n * n_lists;
  lists.count = n;
  return lists;
}

kvevict_score_job test_score_job(uint32_t n_tokens, const kvevict_view* view,
                                 const kvevict_signal_inputs* inputs,
                                 float* scores, uint32_t n_heads) {
  return (kvevict_score_job){.struct_size = sizeof(kvevict_score_job),
                             .n_tokens = n_tokens,
                             .view = view,
                             .inputs = inputs,
                             .scores = scores,
                             .scores_len = (size_t)n_heads * n_tokens};
}

kvevict_status test_score_jobs(const test_plan* plan,
                               const kvevict_score_job* jobs, size_t jobs_len) {
  return kvevict_score(plan->plan, jobs, jobs_len, plan->workspace,
                       plan->workspace_bytes, NULL);
}

kvevict_status test_score(const test_plan* plan, const kvevict_plane* queries,
                          const kvevict_view* view, uint32_t n_tokens,
                          float* scores, size_t scores_len) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = queries;
  kvevict_score_job job = test_score_job(n_tokens, view, &inputs, scores, 1);
  job.scores_len = scores_len;
  return test_score_jobs(plan, &job, 1);
}

kvevict_status test_select(const test_plan* plan, uint32_t layer,
                           const float* scores, size_t scores_len,
                           uint32_t n_tokens, const int32_t* protect,
                           size_t n_protect, int32_t* keep, size_t keep_len,
                           uint32_t* n_keep) {
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  kvevict_status status =
      kvevict_plan_selection(plan->plan, layer, n_tokens, 0, &options, &lists);
  if (status != KVEVICT_OK) return status;
  options.scores = scores;
  options.scores_len = scores_len;
  options.protected_slots = protect;
  options.protected_slots_len = n_protect;
  lists.slots = keep;
  lists.slots_len = keep_len;
  status = kvevict_select(plan->context, &options, &lists, plan->workspace,
                          plan->workspace_bytes, NULL);
  if (status == KVEVICT_OK) *n_keep = lists.count;
  return status;
}

kvevict_status test_compact(const kvevict_context* context,
                            const kvevict_view* view, uint32_t n_tokens,
                            const int32_t* keep, uint32_t n, uint32_t n_lists) {
  const kvevict_keep_lists lists = test_lists(keep, n, n_lists);
  const kvevict_move move = {.struct_size = sizeof move,
                             .n_tokens = n_tokens,
                             .view = view,
                             .keep = &lists};
  return kvevict_compact(context, &move, 1, NULL, 0, NULL);
}

kvevict_status test_reorder_bytes(const kvevict_context* context,
                                  const kvevict_view* view, uint32_t n,
                                  uint32_t n_lists, size_t* out_bytes) {
  const kvevict_keep_lists lists = test_lists(NULL, n, n_lists);
  const kvevict_move move = {
      .struct_size = sizeof move, .n_tokens = n, .view = view, .keep = &lists};
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  const kvevict_status status =
      kvevict_reorder_workspace(context, &move, 1, &workspace);
  *out_bytes = workspace.least_bytes;
  return status;
}
