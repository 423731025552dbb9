#include "tests/gpu/doors.h"

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

kvevict_status Score(const ScoreCall& call, float* scores, size_t scores_len,
                     const Scratch& scratch) {
  kvevict_score_inputs inputs = KVEVICT_SCORE_INPUTS_INIT;
  inputs.layer = call.layer;
  inputs.n_tokens = call.n_tokens;
  inputs.view = call.view;
  inputs.queries = call.queries;
  inputs.row_lse = call.row_lse;
  return kvevict_score(call.plan, &inputs, scores, scores_len, scratch.memory,
                       scratch.n_bytes, scratch.stream);
}

size_t SelectBytes(const kvevict_context* context, uint32_t n_tokens,
                   uint32_t n_lists) {
  size_t n_bytes = 0;
  Check(kvevict_select_workspace_bytes(context, n_tokens, n_lists, &n_bytes));
  return n_bytes;
}

kvevict_status Select(const SelectCall& call, int32_t* keep, size_t keep_len,
                      uint32_t* n_keep, const Scratch& scratch) {
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  const kvevict_status status = kvevict_plan_selection(
      call.plan, call.layer, call.n_tokens, &options, &lists);
  if (status != KVEVICT_OK) return status;
  options.scores = call.scores_len == 0 ? nullptr : call.scores;
  options.scores_len = call.scores_len;
  options.protected_slots = call.protect.data();
  options.protected_slots_len = call.protect.size();
  lists.slots = keep;
  lists.slots_len = keep_len;
  *n_keep = lists.count;
  return kvevict_select(call.context, &options, &lists, scratch.memory,
                        scratch.n_bytes, scratch.stream);
}

OneMove::OneMove(const kvevict_view& view, uint32_t n_tokens,
                 const int32_t* slots, size_t slots_len, uint32_t n_lists) {
  keep_.n_lists = n_lists;
  keep_.slots = const_cast<int32_t*>(slots);  // are read only
  keep_.slots_len = slots_len;
  keep_.count = static_cast<uint32_t>(slots_len / n_lists);
  move_.n_tokens = n_tokens;
  move_.view = &view;
  move_.keep = &keep_;
}

size_t OneMove::CompactBytes(const kvevict_context* context) const {
  size_t n_bytes = 0;
  Check(kvevict_compact_workspace_bytes(context, &move_, 1, &n_bytes));
  return n_bytes;
}

kvevict_status OneMove::Compact(const kvevict_context* context,
                                const Scratch& scratch) const {
  return kvevict_compact(context, &move_, 1, scratch.memory, scratch.n_bytes,
                         scratch.stream);
}

size_t OneMove::ReorderBytes(const kvevict_context* context) const {
  size_t n_bytes = 0;
  Check(kvevict_reorder_workspace_bytes(context, &move_, 1, &n_bytes));
  return n_bytes;
}

kvevict_status OneMove::Reorder(const kvevict_context* context,
                                const Scratch& scratch) const {
  return kvevict_reorder(context, &move_, 1, scratch.memory, scratch.n_bytes,
                         scratch.stream);
}

}  // namespace kvevict::gpu
