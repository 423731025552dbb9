// Inputs of policies in addition to the cache: queries, their moments, and
// norms of projected values.
#include "adapter.h"
#include "error.h"
#include "kvevict/experimental.h"
#include "value_norms.h"

using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::FindRotation;
using kvevict::llama::LayerShape;
using kvevict::llama::ProjectedValueNorms;
using kvevict::llama::ReadTensor;
using kvevict::llama::Rotation;

namespace {

// f32 [n_heads, n_rows, n], packed.
kvevict_plane Packed(const std::vector<float>& values, uint32_t n_rows,
                     uint32_t n) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uint64_t>(values.data());
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = n;
  plane.token_stride_bytes = int64_t{n} * int64_t{sizeof(float)};
  plane.head_stride_bytes = plane.token_stride_bytes * n_rows;
  return plane;
}

}  // namespace

// Sinks are unlike future queries and are left out, as in kvpress.
void kvevict_llama::AddMoments(size_t index, const ggml_tensor* q) {
  const auto head_dim = static_cast<uint32_t>(q->ne[0]);
  const auto tokens = static_cast<size_t>(q->ne[1]);
  const auto n_heads = static_cast<uint32_t>(q->ne[2]);
  if (rotations_.size() <= index) rotations_.resize(index + 1);
  Rotation& rotation = rotations_[index];
  if (rotation.inv_freq.empty()) rotation = FindRotation(q);
  if (!rotation.unknown.empty()) return;
  std::vector<float> row(size_t{n_heads} * head_dim);
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].position < policy_.n_sink) continue;
    const size_t at = r / tokens * q->nb[3] + r % tokens * q->nb[1];
    for (uint32_t h = 0; h < n_heads; ++h) {
      ReadTensor(q, row.data() + size_t{h} * head_dim, at + h * q->nb[2],
                 head_dim * sizeof(float));
    }
    Sequence& s = sequences_[static_cast<size_t>(rows_[r].seq)];
    if (s.moments.size() <= index) s.moments.resize(index + 1);
    s.moments[index].Add(rotation, row.data(), n_heads, head_dim,
                         rows_[r].position);
  }
}

void kvevict_llama::FindMoments(const Sequence& s, size_t layer,
                                LayerInputs& own,
                                kvevict_signal_inputs& inputs) const {
  const LayerShape& shape = shapes_[layer];
  const auto index = static_cast<size_t>(shape.index);
  if (index < rotations_.size() && !rotations_[index].unknown.empty()) {
    Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shape.index, ": ",
         rotations_[index].unknown);
  }
  if (index >= s.moments.size() || s.moments[index].n_rows() == 0) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shape.index,
         ": the policy scores by the mean of the queries behind the first ",
         policy_.n_sink, ", of which none is known");
  }
  s.moments[index].Expect(rotations_[index], s.next, own.mean_values,
                          own.covariance_values);
  const uint32_t dim = shape.k.head_dim;
  own.mean = Packed(own.mean_values, 1, dim);
  own.covariance = Packed(own.covariance_values, dim, dim);
  inputs.query_mean = &own.mean;
  inputs.query_covariance = &own.covariance;
}

void kvevict_llama::FindInputs(
    const Sequence& s, const std::vector<kvevict_view>& views,
    std::vector<LayerInputs>& memory,
    std::vector<kvevict_signal_inputs>& inputs) const {
  const bool needs_queries = policy_.Needs(KVEVICT_INPUT_QUERIES);
  const bool needs_weights = policy_.Needs(KVEVICT_INPUT_TOKEN_WEIGHTS);
  if (!needs_queries && !needs_weights && !wants_moments_) return;
  const kvevict_signal_inputs none = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.assign(shapes_.size(), none);
  memory.resize(shapes_.size());
  for (size_t i = 0; i < shapes_.size(); ++i) {
    LayerInputs& own = memory[i];
    if (needs_queries) FindQueries(s, i, &own.queries, &inputs[i]);
    if (wants_moments_) FindMoments(s, i, own, inputs[i]);
    if (needs_weights) {
      own.weight_values = ProjectedValueNorms(shapes_[i], views[i], s.n_cells,
                                              LiveLayer(i).projection,
                                              llama_n_threads_batch(ctx_));
      own.weights = Packed(own.weight_values, s.n_cells, 1);
      inputs[i].token_weights = &own.weights;
    }
  }
}
