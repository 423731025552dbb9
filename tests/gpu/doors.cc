#include "tests/gpu/doors.h"

#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

kvevict_status Score(const ScoreCall& call, float* scores, size_t scores_len,
                     const Scratch& scratch) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.queries = call.queries;
  inputs.row_lse = call.row_lse;
  inputs.n_query_rows = call.n_query_rows;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.layer = call.layer;
  job.n_tokens = call.n_tokens;
  job.view = call.view;
  job.inputs = &inputs;
  job.scores = scores;
  job.scores_len = scores_len;
  return kvevict_score(call.plan, &job, 1, scratch.memory, scratch.n_bytes,
                       scratch.stream);
}

kvevict_status Observe(kvevict_sequence* sequence,
                       std::span<const Shown> layers, uint32_t n_rows,
                       uint32_t first_position, kvevict_stream stream) {
  std::vector<kvevict_signal_inputs> inputs(layers.size(),
                                            KVEVICT_SIGNAL_INPUTS_INIT);
  std::vector<kvevict_observation> observations(layers.size(),
                                                KVEVICT_OBSERVATION_INIT);
  for (size_t i = 0; i < layers.size(); ++i) {
    inputs[i].queries = layers[i].queries;
    inputs[i].row_lse = layers[i].row_lse;
    observations[i].layer = layers[i].layer;
    observations[i].inputs = &inputs[i];
  }
  return kvevict_sequence_observe(sequence, observations.data(),
                                  observations.size(), n_rows, first_position,
                                  stream);
}

kvevict_signal_inputs* LayerInputs::Add() {
  inputs_.push_back(KVEVICT_SIGNAL_INPUTS_INIT);
  return &inputs_.back();
}

const kvevict_plane* LayerInputs::Floats(const void* address,
                                         uint64_t head_stride) {
  kvevict_plane plane{};
  plane.data = reinterpret_cast<uintptr_t>(address);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes = static_cast<int64_t>(head_stride * sizeof(float));
  planes_.push_back(plane);
  return &planes_.back();
}

void LayerInputs::AddScores(const void* address, uint64_t head_stride) {
  Add()->scores = Floats(address, head_stride);
}

void LayerInputs::AddWindow(const kvevict_plane& queries,
                            const kvevict_plane* row_lse) {
  planes_.push_back(queries);
  kvevict_signal_inputs* const inputs = Add();
  inputs->queries = &planes_.back();
  inputs->row_lse = row_lse;
}

void LayerInputs::Lend(kvevict_evict_options* options) const {
  options->inputs = inputs_.data();
  options->inputs_len = inputs_.size();
}

size_t SelectBytes(const kvevict_context* context, uint32_t n_tokens,
                   uint32_t n_lists) {
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_select_workspace(context, n_tokens, n_lists, &workspace));
  return workspace.best_bytes;
}

kvevict_status Select(const SelectCall& call, int32_t* keep, size_t keep_len,
                      uint32_t* n_keep, const Scratch& scratch) {
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  const kvevict_status status = kvevict_plan_selection(
      call.plan, call.layer, call.n_tokens, 0, &options, &lists);
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
  keep_.slots = const_cast<int32_t*>(slots);  // only read
  keep_.slots_len = slots_len;
  keep_.count = static_cast<uint32_t>(slots_len / n_lists);
  move_.n_tokens = n_tokens;
  move_.view = &view;
  move_.keep = &keep_;
}

size_t OneMove::CompactBytes(const kvevict_context* context) const {
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_compact_workspace(context, &move_, 1, &workspace));
  return workspace.best_bytes;
}

kvevict_status OneMove::Compact(const kvevict_context* context,
                                const Scratch& scratch) const {
  return kvevict_compact(context, &move_, 1, scratch.memory, scratch.n_bytes,
                         scratch.stream);
}

size_t OneMove::ReorderBytes(const kvevict_context* context) const {
  kvevict_workspace workspace = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_reorder_workspace(context, &move_, 1, &workspace));
  return workspace.best_bytes;
}

kvevict_status OneMove::Reorder(const kvevict_context* context,
                                const Scratch& scratch) const {
  return kvevict_reorder(context, &move_, 1, scratch.memory, scratch.n_bytes,
                         scratch.stream);
}

kvevict_status Rotate(const RotateCall& call, kvevict_stream stream) {
  kvevict_rotation rotation = KVEVICT_ROTATION_INIT;
  rotation.layer = call.layer;
  rotation.n_tokens = call.n_tokens;
  rotation.n_lists = call.n_lists;
  rotation.view = call.view;
  rotation.offsets = call.offsets;
  rotation.offsets_len = call.offsets_len;
  return kvevict_rotate(call.plan, &rotation, 1, stream);
}

}  // namespace kvevict::gpu
