#include "ggml_weights.h"

#include <ggml.h>
#include <gguf.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

namespace kvevict::llama_cli {
namespace {

using tools::LlamaConfig;
using tools::LlamaLayer;
using tools::LlamaWeights;
using tools::Matrix;

[[noreturn]] void Refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error(path + ": " + why);
}

// A value of the model's metadata as text; "" if there is none.
std::string Meta(const llama_model* model, const char* key) {
  char text[128];
  const int32_t n = llama_model_meta_val_str(model, key, text, sizeof text);
  return n < 0 ? "" : text;
}

double Number(const llama_model* model, const char* key, double otherwise) {
  const std::string text = Meta(model, key);
  return text.empty() ? otherwise : std::strtod(text.c_str(), nullptr);
}

// The tensors of a file, which are checked and decoded by name.
class Tensors {
 public:
  explicit Tensors(const std::string& path) : path_(path) {
    ggml_context* tensors = nullptr;
    file_.reset(gguf_init_from_file(path.c_str(), {false, &tensors}));
    tensors_.reset(tensors);
    if (file_ == nullptr) Refuse(path, "ggml cannot read it");
  }

  bool Has(const std::string& name) const {
    return ggml_get_tensor(tensors_.get(), name.c_str()) != nullptr;
  }

  size_t Rows(const std::string& name) const {
    return static_cast<size_t>(Find(name)->ne[1]);
  }

  std::vector<float> Vector(const std::string& name, size_t n) {
    return Values(name, 1, n);
  }

  // As in the file, [n_rows, n_columns].
  std::vector<float> Values(const std::string& name, size_t n_rows,
                            size_t n_columns) {
    const ggml_tensor* tensor = Find(name);
    if (tensor->ne[0] != static_cast<int64_t>(n_columns) ||
        ggml_nrows(tensor) != static_cast<int64_t>(n_rows)) {
      Refuse(path_,
             "tensor '" + name + "' is " + std::to_string(ggml_nrows(tensor)) +
                 " x " + std::to_string(tensor->ne[0]) + ", not " +
                 std::to_string(n_rows) + " x " + std::to_string(n_columns));
    }
    read_.insert(name);
    std::vector<float> values(n_rows * n_columns);
    if (tensor->type == GGML_TYPE_F32) {
      std::memcpy(values.data(), tensor->data, values.size() * sizeof(float));
      return values;
    }
    const ggml_to_float_t decode = ggml_get_type_traits(tensor->type)->to_float;
    if (decode == nullptr) {
      Refuse(path_, "tensor '" + name + "' is of type " +
                        ggml_type_name(tensor->type) +
                        ", which ggml does not decode");
    }
    decode(tensor->data, values.data(), static_cast<int64_t>(values.size()));
    return values;
  }

  Matrix Projection(const std::string& name, size_t n_outputs,
                    size_t n_inputs) {
    return Matrix::FromFile(n_outputs, n_inputs,
                            Values(name, n_outputs, n_inputs));
  }

  // A tensor that is left out would make the model another one.
  void CheckAllRead() const {
    for (int64_t i = 0; i < gguf_get_n_tensors(file_.get()); ++i) {
      const char* name = gguf_get_tensor_name(file_.get(), i);
      if (!read_.contains(name)) {
        Refuse(path_, "tensor '" + std::string(name) +
                          "' is no part of the models that kvevict's own "
                          "engine runs");
      }
    }
  }

 private:
  const ggml_tensor* Find(const std::string& name) const {
    const ggml_tensor* tensor = ggml_get_tensor(tensors_.get(), name.c_str());
    if (tensor == nullptr) Refuse(path_, "tensor '" + name + "' is missing");
    return tensor;
  }

  struct Free {
    void operator()(gguf_context* p) const { gguf_free(p); }
    void operator()(ggml_context* p) const { ggml_free(p); }
  };
  const std::string& path_;
  std::unique_ptr<gguf_context, Free> file_;
  std::unique_ptr<ggml_context, Free> tensors_;
  std::set<std::string, std::less<>> read_;
};

std::vector<double> InvFreq(const llama_model* model, const std::string& path,
                            uint32_t head_dim, Tensors& tensors) {
  const auto n_dims = static_cast<uint32_t>(
      Number(model, "llama.rope.dimension_count", head_dim));
  std::vector<double> inv_freq =
      tools::RopeInvFreq(n_dims, Number(model, "llama.rope.freq_base", 10000));
  const std::string scaling = Meta(model, "llama.rope.scaling.type");
  if (scaling.empty() || scaling == "linear") {
    for (double& f : inv_freq) f *= llama_model_rope_freq_scale_train(model);
  } else if (scaling != "none") {
    Refuse(path, "kvevict's own engine has no RoPE scaling '" + scaling + "'");
  }
  if (tensors.Has("rope_freqs.weight")) {  // Llama 3.1: a divisor per pair
    const auto divisors = tensors.Vector("rope_freqs.weight", inv_freq.size());
    for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= divisors[i];
  }
  return inv_freq;
}

LlamaConfig Config(const llama_model* model, const std::string& path,
                   Tensors& tensors) {
  if (const std::string what = Meta(model, "general.architecture");
      what != "llama") {
    Refuse(path, "its architecture is '" + what +
                     "', but kvevict's own engine runs 'llama'");
  }
  LlamaConfig config;
  config.n_layers = static_cast<uint32_t>(llama_model_n_layer(model));
  config.d_model = static_cast<uint32_t>(llama_model_n_embd(model));
  config.n_q_heads = static_cast<uint32_t>(llama_model_n_head(model));
  config.n_kv_heads = static_cast<uint32_t>(llama_model_n_head_kv(model));
  config.context_length = static_cast<uint32_t>(llama_model_n_ctx_train(model));
  config.vocab_size = static_cast<uint32_t>(tensors.Rows("token_embd.weight"));
  config.d_ff =
      static_cast<uint32_t>(Number(model, "llama.feed_forward_length", 0));
  config.norm_eps = static_cast<float>(
      Number(model, "llama.attention.layer_norm_rms_epsilon", 0));
  config.head_dim = static_cast<uint32_t>(
      Number(model, "llama.attention.key_length",
             static_cast<double>(config.d_model) / config.n_q_heads));
  if (Number(model, "llama.attention.value_length", config.head_dim) !=
      config.head_dim) {
    Refuse(path, "its keys and values differ in length");
  }
  config.inv_freq = InvFreq(model, path, config.head_dim, tensors);
  return config;
}

LlamaLayer Layer(const LlamaConfig& c, uint32_t index, Tensors& tensors) {
  const size_t d = c.d_model, q = size_t{c.n_q_heads} * c.head_dim,
               kv = size_t{c.n_kv_heads} * c.head_dim;
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto matrix = [&](const char* name, size_t n_out, size_t n_in) {
    return tensors.Projection(prefix + name + ".weight", n_out, n_in);
  };
  LlamaLayer layer;
  layer.attention_norm = tensors.Vector(prefix + "attn_norm.weight", d);
  layer.wq = matrix("attn_q", q, d);
  layer.wk = matrix("attn_k", kv, d);
  layer.wv = matrix("attn_v", kv, d);
  layer.wo = matrix("attn_output", d, q);
  layer.ffn_norm = tensors.Vector(prefix + "ffn_norm.weight", d);
  layer.w_gate = matrix("ffn_gate", c.d_ff, d);
  layer.w_up = matrix("ffn_up", c.d_ff, d);
  layer.w_down = matrix("ffn_down", d, c.d_ff);
  return layer;
}

}  // namespace

LlamaWeights ReadWeights(const llama_model* model, const std::string& path) {
  Tensors tensors(path);
  LlamaWeights weights;
  weights.config = Config(model, path, tensors);
  const LlamaConfig& c = weights.config;
  const size_t d = c.d_model;
  weights.token_embedding =
      tensors.Values("token_embd.weight", c.vocab_size, d);
  for (uint32_t i = 0; i < c.n_layers; ++i) {
    weights.layers.push_back(Layer(c, i, tensors));
  }
  weights.final_norm = tensors.Vector("output_norm.weight", d);
  weights.output =
      tensors.Has("output.weight")
          ? tensors.Projection("output.weight", c.vocab_size, d)
          : Matrix::FromFile(c.vocab_size, d, weights.token_embedding);
  tensors.CheckAllRead();
  return weights;
}

}  // namespace kvevict::llama_cli
