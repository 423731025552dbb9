// Inputs of policies in addition to the cache: queries, their statistics, and
// norms of projected values.
#include <kvevict/calibration.h>

#include "adapter.h"
#include "error.h"
#include "kvevict/experimental.h"
#include "value_norms.h"

using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::LayerShape;
using kvevict::llama::ProjectedValueNorms;

namespace {

// Positions over which the rotation of future queries is averaged, as in the
// paper on expected attention (arXiv:2510.00636).
constexpr uint32_t kFuturePositions = 512;

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

void kvevict_llama::FindMoments(const Sequence& s, size_t layer,
                                LayerInputs& own,
                                kvevict_signal_inputs& inputs) {
  const LayerShape& shape = shapes_[layer];
  const kvevict_calibration* moments = nullptr;
  auto number = static_cast<uint32_t>(layer);
  bool has_covariances = true;
  if (wants_moments_) {
    const auto index = static_cast<size_t>(shape.index);
    (void)RotationOf({&shape, 1});
    if (index < s.moments.size()) moments = s.moments[index].get();
    if (moments == nullptr) {
      Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shape.index,
           ": the policy scores by the mean of the queries behind the first ",
           policy_.n_sink, ", of which none is known");
    }
    number = 0;
  } else {
    moments = SavedCalibration();
    has_covariances = saved_has_covariances_;
  }
  const uint32_t dim = shape.k.head_dim;
  own.mean_values.resize(size_t{shape.n_q_heads} * dim);
  if (has_covariances) {
    own.covariance_values.resize(own.mean_values.size() * dim);
  }
  Check(kvevict_calibration_query_mean(
      moments, number, s.next, kFuturePositions, own.mean_values.data(),
      own.mean_values.size(),
      has_covariances ? own.covariance_values.data() : nullptr,
      own.covariance_values.size()));
  own.mean = Packed(own.mean_values, 1, dim);
  inputs.query_mean = &own.mean;
  if (!has_covariances) return;
  own.covariance = Packed(own.covariance_values, dim, dim);
  inputs.query_covariance = &own.covariance;
}

void kvevict_llama::FindCenters(size_t layer, LayerInputs& own,
                                kvevict_signal_inputs& inputs) {
  const auto n_pairs =
      static_cast<uint32_t>(RotationOf(shapes_).inv_freq.size());
  own.center_values.resize(size_t{shapes_[layer].n_q_heads} * 3 * n_pairs);
  Check(kvevict_calibration_query_centers(
      SavedCalibration(), static_cast<uint32_t>(layer),
      own.center_values.data(), own.center_values.size()));
  own.centers = Packed(own.center_values, 3, n_pairs);
  inputs.query_centers = &own.centers;
}

void kvevict_llama::FindInputs(const Sequence& s,
                               const std::vector<kvevict_view>& views,
                               std::vector<LayerInputs>& memory,
                               std::vector<kvevict_signal_inputs>& inputs) {
  const bool needs_queries = policy_.Needs(KVEVICT_INPUT_QUERIES);
  const bool needs_weights = policy_.Needs(KVEVICT_INPUT_TOKEN_WEIGHTS);
  const bool needs_moments = policy_.Needs(KVEVICT_INPUT_QUERY_MEAN);
  const bool needs_centers = policy_.Needs(KVEVICT_INPUT_QUERY_CENTERS);
  if (!needs_queries && !needs_weights && !needs_moments && !needs_centers) {
    return;
  }
  const kvevict_signal_inputs none = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.assign(shapes_.size(), none);
  memory.resize(shapes_.size());
  for (size_t i = 0; i < shapes_.size(); ++i) {
    LayerInputs& own = memory[i];
    if (needs_queries) FindQueries(s, i, &own.queries, &inputs[i]);
    if (needs_moments) FindMoments(s, i, own, inputs[i]);
    if (needs_centers) FindCenters(i, own, inputs[i]);
    if (needs_weights) {
      own.weight_values = ProjectedValueNorms(shapes_[i], views[i], s.n_cells,
                                              LiveLayer(i).projection,
                                              llama_n_threads_batch(ctx_));
      own.weights = Packed(own.weight_values, s.n_cells, 1);
      inputs[i].token_weights = &own.weights;
    }
  }
}
