// What policies read beside the cache: queries, and what becomes of the model's weights.
#include "adapter.h"
#include "error.h"
#include "value_norms.h"

using kvevict::llama::Check;
using kvevict::llama::ProjectedValueNorms;

namespace {

bool Needs(const kvevict_policy& policy, kvevict_input input) {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(&policy, input, &need));
  return need != KVEVICT_NEED_NONE;
}

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

void kvevict_llama::FindInputs(
    const Sequence& s, const std::vector<kvevict_view>& views,
    std::vector<LayerInputs>& memory,
    std::vector<kvevict_signal_inputs>& inputs) const {
  const bool needs_queries = Needs(policy_, KVEVICT_INPUT_QUERIES);
  const bool needs_weights = Needs(policy_, KVEVICT_INPUT_TOKEN_WEIGHTS);
  if (!needs_queries && !needs_weights) return;
  const kvevict_signal_inputs none = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.assign(shapes_.size(), none);
  memory.resize(shapes_.size());
  for (size_t i = 0; i < shapes_.size(); ++i) {
    LayerInputs& own = memory[i];
    if (needs_queries) FindQueries(s, i, &own.queries, &inputs[i]);
    if (needs_weights) {
      own.weight_values = ProjectedValueNorms(shapes_[i], views[i], s.n_cells,
                                              LiveLayer(i).projection,
                                              llama_n_threads_batch(ctx_));
      own.weights = Packed(own.weight_values, s.n_cells, 1);
      inputs[i].token_weights = &own.weights;
    }
  }
}
