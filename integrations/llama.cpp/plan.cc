// The layers of a context that are evicted, and the plan for them.
#include <algorithm>
#include <cstring>
#include <limits>

#include "adapter.h"
#include "error.h"

using kvevict::llama::Bytes;
using kvevict::llama::Check;
using kvevict::llama::Fail;
using kvevict::llama::Layer;
using kvevict::llama::LayerShape;
using kvevict::llama::PlanHandle;
using kvevict::llama::ReadTensor;
using kvevict::llama::Rotation;

namespace {

// llama.cpp allocates cells in multiples of this number.
constexpr uint32_t kCellPadding = 256;

}  // namespace

// Indices, in the observer's list, of the layers whose cache keeps every token.
std::vector<size_t> kvevict_llama::FullLayers(llama_seq_id seq) {
  const std::vector<Layer>& layers = observer_.layers();
  std::vector<size_t> first, second;
  const ggml_tensor* cells = nullptr;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].shape.n_kv_heads == 0 || layers[i].cells == nullptr) {
      continue;
    }
    if (cells == nullptr) cells = layers[i].cells;
    (layers[i].cells == cells ? first : second).push_back(i);
  }
  if (second.empty()) return first;
  // Layers with a window have cells of their own, and usually fewer of them.
  const auto n_cells = [&](const std::vector<size_t>& group) {
    return layers[group.front()].k->ne[1];
  };
  if (n_cells(first) != n_cells(second)) {
    return n_cells(first) > n_cells(second) ? first : second;
  }
  // A state begins with the layers that keep everything.
  Bytes memory;
  const auto bytes = state_.Fetch(seq, memory);
  for (const std::vector<size_t>& group : {first, second}) {
    std::vector<LayerShape> shapes;
    for (const size_t i : group) shapes.push_back(layers[i].shape);
    const auto state = state_.TryParse(seq, bytes, shapes);
    if (!state || state->n_cells() == 0) continue;
    const auto* row =
        reinterpret_cast<const uint8_t*>(state->View(shapes.front(), 0).k.data);
    const Layer& layer = layers[group.front()];
    std::vector<uint8_t> cell(layer.shape.k.row_bytes);
    for (int64_t c = 0; c < layer.k->ne[1] * layer.k->ne[2]; ++c) {
      ReadTensor(layer.k, cell.data(), c * cell.size(), cell.size());
      if (std::memcmp(cell.data(), row, cell.size()) == 0) return group;
    }
  }
  Fail(KVEVICT_ERROR_UNSUPPORTED,
       "the cache has an unknown form: no layer lies where a state begins");
}

void kvevict_llama::MakePlan(llama_seq_id seq) {
  const std::vector<Layer>& layers = observer_.layers();
  const std::vector<size_t> full = FullLayers(seq);
  if (full.empty()) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
         "no layer that keeps all tokens has been seen: the context must "
         "decode a batch first, and have the adapter's callback");
  }
  std::vector<LayerShape> shapes;
  SinkLogits sinks;
  bool has_sinks = false;
  for (const size_t i : full) {
    const Layer& layer = layers[i];
    shapes.push_back(layer.shape);
    has_sinks = has_sinks || !layer.sinks.empty();
    sinks.insert(sinks.end(), layer.sinks.begin(), layer.sinks.end());
    sinks.resize(sinks.size() + layer.shape.n_q_heads - layer.sinks.size(),
                 -std::numeric_limits<float>::infinity());
  }
  if (!has_sinks) sinks.clear();
  rope_factors_ = observer_.rope_factors();
  AdoptLayers(std::move(shapes), std::move(sinks),
              static_cast<uint32_t>(layers[full.front()].k->ne[1]));
}

const Layer& kvevict_llama::LiveLayer(size_t i) const {
  for (const Layer& layer : observer_.layers()) {
    if (layer.shape.index != shapes_[i].index) continue;
    if (layer.shape != shapes_[i]) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "layer ", shapes_[i].index,
           ": its cache or attention has changed");
    }
    return layer;
  }
  Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "layer ", shapes_[i].index,
       " has not been seen: llama_decode() comes first");
}

uint64_t kvevict_llama::CellBytes() const {
  uint64_t bytes = 0;
  for (const LayerShape& shape : shapes_) {
    bytes += shape.k.row_bytes + (shape.v.head_dim > 0 ? shape.v.row_bytes : 0);
  }
  return bytes;
}

PlanHandle kvevict_llama::PlanFor(const kvevict_policy* policy,
                                  std::span<const LayerShape> shapes,
                                  std::span<const float> sinks,
                                  uint32_t max_tokens,
                                  const Rotation* rotation) const {
  if (max_tokens == 0) {
    const uint32_t n = llama_n_ctx_seq(ctx_);
    max_tokens = (n + kCellPadding - 1) / kCellPadding * kCellPadding;
  }
  std::vector<kvevict_layer_geometry> layers;
  for (const LayerShape& shape : shapes) {
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = shape.n_q_heads;
    layer.n_kv_heads = shape.n_kv_heads;
    layer.k_dtype = shape.k.dtype();
    layer.v_dtype = shape.v.dtype();
    if (layer.k_dtype != KVEVICT_DTYPE_OPAQUE) {
      layer.k_head_dim = shape.k.head_dim;
    }
    if (shape.v.head_dim == 0) {
      layer.v_dtype = KVEVICT_DTYPE_F32;
    } else if (layer.v_dtype != KVEVICT_DTYPE_OPAQUE) {
      layer.v_head_dim = shape.v.head_dim;
    }
    layer.softmax_scale = shape.scale;
    layer.logit_softcap = shape.softcap;
    layers.push_back(layer);
  }
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = static_cast<uint32_t>(layers.size());
  geometry.max_tokens = max_tokens;
  geometry.layers = layers.data();
  geometry.layers_len = layers.size();
  geometry.sink_logits = sinks.empty() ? nullptr : sinks.data();
  geometry.sink_logits_len = sinks.size();
  std::vector<float> inv_freq;
  if (rotation != nullptr) {
    inv_freq.assign(rotation->inv_freq.begin(), rotation->inv_freq.end());
    geometry.rope_layout = rotation->halves ? KVEVICT_ROPE_LAYOUT_HALF
                                            : KVEVICT_ROPE_LAYOUT_INTERLEAVED;
    geometry.rope_inv_freq = inv_freq.data();
    geometry.rope_inv_freq_len = inv_freq.size();
  }
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.report_mass = 1;
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context_, &geometry, policy, &options, &plan));
  return PlanHandle(plan);
}

const Rotation* kvevict_llama::RotationOfPlan(
    std::span<const LayerShape> shapes) const {
  return policy_.Needs(KVEVICT_INPUT_QUERY_CENTERS) ? &RotationOf(shapes)
                                                    : nullptr;
}

void kvevict_llama::AdoptLayers(std::vector<LayerShape> shapes,
                                SinkLogits sinks, uint32_t max_tokens) {
  plan_ = PlanFor(policy_.handle.get(), shapes, sinks, max_tokens,
                  RotationOfPlan(shapes));
  shapes_ = std::move(shapes);
  sinks_ = std::move(sinks);
}

uint32_t kvevict_llama::LayerIndex(uint32_t i) const {
  if (i >= shapes_.size()) {
    Fail(KVEVICT_ERROR_INVALID_ARGUMENT, "index ", i, " >= ", shapes_.size(),
         " layers that are evicted");
  }
  return static_cast<uint32_t>(shapes_[i].index);
}
