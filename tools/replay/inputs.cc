#include "tools/replay/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace kvevict::tools {
namespace {

enum class Axis {
  kKvHeads,
  kQueryHeads,
  kSumHeads,
  kTokens,
  kElements,
  kThree,
  kPairs
};

struct Input {
  const char* name;
  kvevict_input input;
  const kvevict_plane* kvevict_signal_inputs::*plane;
  std::vector<Axis> axes;
};

const std::vector<Input>& Inputs() {
  using In = kvevict_signal_inputs;
  static const std::vector<Input> inputs = {
      // Those that tell the number of query heads come first.
      {"query_mean",
       KVEVICT_INPUT_QUERY_MEAN,
       &In::query_mean,
       {Axis::kQueryHeads, Axis::kElements}},
      {"query_centers",
       KVEVICT_INPUT_QUERY_CENTERS,
       &In::query_centers,
       {Axis::kQueryHeads, Axis::kThree, Axis::kPairs}},
      {"query_covariance",
       KVEVICT_INPUT_QUERY_COVARIANCE,
       &In::query_covariance,
       {Axis::kQueryHeads, Axis::kElements, Axis::kElements}},
      {"scores",
       KVEVICT_INPUT_SCORES,
       &In::scores,
       {Axis::kKvHeads, Axis::kTokens}},
      {"attention_sums",
       KVEVICT_INPUT_ATTENTION_SUMS,
       &In::attention_sums,
       {Axis::kSumHeads, Axis::kTokens}},
      {"key_filter",
       KVEVICT_INPUT_KEY_FILTER,
       &In::key_filter,
       {Axis::kKvHeads, Axis::kElements}},
      {"token_weights",
       KVEVICT_INPUT_TOKEN_WEIGHTS,
       &In::token_weights,
       {Axis::kKvHeads, Axis::kTokens}},
  };
  return inputs;
}

std::vector<float> Floats(const Tensor& tensor) {
  if (tensor.dtype() != KVEVICT_DTYPE_F32) {
    tensor.Fail("its type " + tensor.type + " is not f32");
  }
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  if (!values.empty()) {
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return values;
}

// True if attention sums may have so many rows.
bool IsSumHeads(uint64_t n, uint32_t n_q_heads, uint32_t n_kv_heads) {
  return n > 0 && (n == 1 || n == n_q_heads || n == n_kv_heads);
}

}  // namespace

DumpInputs::DumpInputs(const TensorFiles& files, const Dump& dump,
                       uint32_t n_tokens, std::span<const Policy> policies)
    : layers_(dump.layers.size(), KVEVICT_SIGNAL_INPUTS_INIT) {
  for (const DumpLayer& layer : dump.layers) {
    n_q_heads_.push_back(layer.q.n_heads);
  }
  if (const Tensor* rope = files.Find("rope_inv_freq")) {
    if (rope->shape.size() != 1) {
      rope->Fail("it has to be [pairs]");
    }
    rope_inv_freq_ = Floats(*rope);
  }
  for (size_t i = 0; i < Inputs().size(); ++i) {
    const auto reads = [&](const Policy& policy) {
      return policy.Need(Inputs()[i].input) != KVEVICT_NEED_NONE;
    };
    if (std::any_of(policies.begin(), policies.end(), reads)) {
      Add(files, dump, n_tokens, i);
    }
  }
  for (size_t l = 0; l < n_q_heads_.size(); ++l) {
    if (n_q_heads_[l] == 0) n_q_heads_[l] = dump.layers[l].k.n_heads;
  }
}

void DumpInputs::LearnQueryHeads(size_t layer, uint64_t n_heads,
                                 uint32_t n_kv_heads) {
  uint32_t& known = n_q_heads_[layer];
  if (known == 0 && n_heads <= 65535 && n_heads % n_kv_heads == 0) {
    known = static_cast<uint32_t>(n_heads);
  }
}

void DumpInputs::Add(const TensorFiles& files, const Dump& dump,
                     uint32_t n_tokens, size_t input) {
  const Input& what = Inputs()[input];
  const auto tensors = TensorsOfLayers(files, what.name, what.axes.size());
  if (tensors.empty()) return;
  if (tensors.size() != dump.layers.size()) {
    tensors[0].Fail(fmt::format("it is there for {} layers, K for {}",
                                tensors.size(), dump.layers.size()));
  }
  for (size_t l = 0; l < tensors.size(); ++l) {
    const Tensor& tensor = tensors[l];
    const uint32_t n_kv_heads = dump.layers[l].k.n_heads;
    const uint64_t n_heads = tensor.shape[0];
    std::vector<uint64_t> shape;
    for (const Axis axis : what.axes) {
      switch (axis) {
        case Axis::kKvHeads:
          shape.push_back(n_kv_heads);
          break;
        case Axis::kQueryHeads:
          LearnQueryHeads(l, n_heads, n_kv_heads);
          shape.push_back(n_q_heads_[l] == 0 ? n_kv_heads : n_q_heads_[l]);
          break;
        case Axis::kSumHeads:
          if (n_heads > n_kv_heads) LearnQueryHeads(l, n_heads, n_kv_heads);
          shape.push_back(IsSumHeads(n_heads, n_q_heads_[l], n_kv_heads)
                              ? n_heads
                              : n_kv_heads);
          break;
        case Axis::kTokens:
          shape.push_back(n_tokens);
          break;
        case Axis::kElements:
          shape.push_back(dump.layers[l].k.plane.head_dim);
          break;
        case Axis::kThree:
          shape.push_back(3);
          break;
        case Axis::kPairs:
          shape.push_back(rope_inv_freq_.size());
          break;
      }
    }
    if (tensor.shape != shape) {
      tensor.Fail(fmt::format("layer {} has to be {}", l, ShapeText(shape)));
    }
    values_.push_back(Floats(tensor));
    // Every token, head or row of a matrix has a row.
    const bool has_rows = what.axes.back() != Axis::kTokens;
    const uint64_t n_elements = has_rows ? shape.back() : 1;
    kvevict_plane& plane = planes_.emplace_back(
        kvevict_plane_token_major(values_.back().data(), KVEVICT_DTYPE_F32, 1,
                                  static_cast<uint32_t>(n_elements)));
    plane.head_stride_bytes =
        static_cast<int64_t>(tensor.bytes.size() / shape[0]);
    layers_[l].*what.plane = &plane;
    if (what.plane == &kvevict_signal_inputs::attention_sums) {
      layers_[l].n_sum_heads = static_cast<uint32_t>(n_heads);
      has_attention_sums_ = true;
    }
  }
}

}  // namespace kvevict::tools
