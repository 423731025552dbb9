#include "tests/llama_cpp/random_model.h"

#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <stdexcept>
#include <vector>

namespace kvevict::tests {
namespace {

class Writer {
 public:
  explicit Writer(const RandomModel& model)
      : model_(model),
        gguf_(gguf_init_empty()),
        tensors_(ggml_init({Megabytes(model), nullptr, false})) {}
  ~Writer() {
    ggml_free(tensors_);
    gguf_free(gguf_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Copies everything except tensors from another model's file.
  void AllOf(const std::string& path) {
    gguf_context* other = gguf_init_from_file(path.c_str(), {true, nullptr});
    if (other == nullptr) throw std::runtime_error("cannot read " + path);
    gguf_set_kv(gguf_, other);
    gguf_free(other);
  }
  void Text(const char* key, const std::string& value) {
    gguf_set_val_str(gguf_, key, value.c_str());
  }
  void Number(const std::string& key, uint32_t value) {
    gguf_set_val_u32(gguf_, (model_.arch + "." + key).c_str(), value);
  }
  void Real(const std::string& key, float value) {
    gguf_set_val_f32(gguf_, (model_.arch + "." + key).c_str(), value);
  }
  void Numbers(const std::string& key, const std::vector<uint32_t>& values) {
    gguf_set_arr_data(gguf_, (model_.arch + "." + key).c_str(),
                      GGUF_TYPE_UINT32, values.data(), values.size());
  }

  void Signed(const std::string& key, const std::vector<int32_t>& values) {
    gguf_set_arr_data(gguf_, (model_.arch + "." + key).c_str(), GGUF_TYPE_INT32,
                      values.data(), values.size());
  }

  // There is a token for each character: printable ASCII, then others from U+00C0 on.
  void Characters() {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "\n",
                                       "\xe2\x96\x81"};  // a space
    for (char c = '!'; c <= '~'; ++c) tokens.emplace_back(1, c);
    for (int c = 0xC0; tokens.size() < model_.n_vocab; ++c) {
      tokens.push_back({static_cast<char>(0xC0 | c >> 6),
                        static_cast<char>(0x80 | (c & 0x3F))});
    }
    constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3;
    std::vector<int32_t> types(tokens.size(), kNormal);
    types[0] = kUnknown;
    types[1] = types[2] = kControl;
    const std::vector<float> scores(tokens.size());
    std::vector<const char*> texts;
    for (const std::string& token : tokens) texts.push_back(token.c_str());
    gguf_set_val_str(gguf_, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(gguf_, "tokenizer.ggml.tokens", texts.data(),
                     texts.size());
    gguf_set_arr_data(gguf_, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32,
                      scores.data(), scores.size());
    gguf_set_arr_data(gguf_, "tokenizer.ggml.token_type", GGUF_TYPE_INT32,
                      types.data(), types.size());
    for (const char* key : {"add_bos_token", "add_space_prefix"}) {
      gguf_set_val_bool(gguf_, (std::string("tokenizer.ggml.") + key).c_str(),
                        false);
    }
  }

  // Weights of a matrix keep the size of their operands. Vectors are norms near
  // 1.
  void Tensor(const std::string& name, std::initializer_list<int64_t> shape) {
    ggml_tensor* t = ggml_new_tensor(
        tensors_, GGML_TYPE_F32, static_cast<int>(shape.size()), shape.begin());
    ggml_set_name(t, name.c_str());
    auto* data = static_cast<float*>(t->data);
    const float scale = shape.size() == 1
                            ? 0.1f
                            : 1.3f / std::sqrt(static_cast<float>(t->ne[0]));
    const bool bias = name.ends_with(".bias");
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < ggml_nelements(t); ++i) {
      data[i] = normal(random_) * scale + (shape.size() == 1 && !bias ? 1 : 0);
    }
    if (shape.size() > 1 && model_.type != GGML_TYPE_F32) t = Converted(t);
    gguf_add_tensor(gguf_, t);
  }

  std::string Save() {
    char path[] = "/tmp/kvevict-model-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0 || close(file) != 0 ||
        !gguf_write_to_file(gguf_, path, false)) {
      throw std::runtime_error("cannot write " + std::string(path));
    }
    return path;
  }

 private:
  // The matrix in the model's type.
  ggml_tensor* Converted(const ggml_tensor* from) {
    ggml_tensor* to =
        ggml_new_tensor(tensors_, model_.type, ggml_n_dims(from), from->ne);
    ggml_set_name(to, from->name);
    ggml_quantize_chunk(model_.type, static_cast<const float*>(from->data),
                        to->data, 0, ggml_nrows(from), from->ne[0], nullptr);
    return to;
  }

  static size_t Megabytes(const RandomModel& m) {
    const size_t row = m.n_embd + 2 * m.n_heads * m.head_dim + m.n_ff;
    return 8 * (2 * size_t{m.n_vocab} * m.n_embd +
                m.n_layers * 8 * row * m.n_embd) +
           (size_t{8} << 20);
  }

  const RandomModel& model_;
  gguf_context* gguf_;
  ggml_context* tensors_;
  std::mt19937 random_{7};
};

void Attention(Writer& w, const RandomModel& m, const std::string& layer) {
  const int64_t n = m.n_embd;
  w.Tensor(layer + "attn_q.weight", {n, m.n_heads * m.head_dim});
  w.Tensor(layer + "attn_k.weight", {n, m.n_kv_heads * m.head_dim});
  w.Tensor(layer + "attn_v.weight", {n, m.n_kv_heads * m.head_dim});
  w.Tensor(layer + "attn_output.weight", {m.n_heads * m.head_dim, n});
}

void LatentAttention(Writer& w, const RandomModel& m,
                     const std::string& layer) {
  const int64_t n = m.n_embd, latent = 2 * m.head_dim, rope = m.head_dim / 2;
  w.Tensor(layer + "attn_q_a.weight", {n, 48});
  w.Tensor(layer + "attn_q_a_norm.weight", {48});
  w.Tensor(layer + "attn_q_b.weight", {48, m.n_heads * (m.head_dim + rope)});
  w.Tensor(layer + "attn_kv_a_mqa.weight", {n, latent + rope});
  w.Tensor(layer + "attn_kv_a_norm.weight", {latent});
  w.Tensor(layer + "attn_k_b.weight", {m.head_dim, latent, m.n_heads});
  w.Tensor(layer + "attn_v_b.weight", {latent, m.head_dim, m.n_heads});
  w.Tensor(layer + "attn_output.weight", {m.n_heads * m.head_dim, n});
}

void Bloom(Writer& w, const RandomModel& m) {
  const int64_t n = m.n_embd;
  for (const char* norm : {"token_embd_norm", "output_norm"}) {
    w.Tensor(norm + std::string(".weight"), {n});
    w.Tensor(norm + std::string(".bias"), {n});
  }
  w.Tensor("output.weight", {n, m.n_vocab});
  for (uint32_t i = 0; i < m.n_layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    for (const char* norm : {"attn_norm", "ffn_norm"}) {
      w.Tensor(layer + norm + ".weight", {n});
      w.Tensor(layer + norm + ".bias", {n});
    }
    w.Tensor(layer + "attn_qkv.weight", {n, 3 * n});
    w.Tensor(layer + "attn_qkv.bias", {3 * n});
    w.Tensor(layer + "attn_output.weight", {n, n});
    w.Tensor(layer + "attn_output.bias", {n});
    w.Tensor(layer + "ffn_up.weight", {n, 4 * n});
    w.Tensor(layer + "ffn_up.bias", {4 * n});
    w.Tensor(layer + "ffn_down.weight", {4 * n, n});
    w.Tensor(layer + "ffn_down.bias", {n});
  }
}

// Writes experts, and sinks in the softmax.
void Oss(Writer& w, const RandomModel& m, const std::string& layer) {
  constexpr int64_t n_experts = 2;
  const int64_t n = m.n_embd, ff = m.n_ff;
  w.Tensor(layer + "post_attention_norm.weight", {n});
  w.Tensor(layer + "attn_output.bias", {n});
  w.Tensor(layer + "attn_sinks.weight", {m.n_heads});
  w.Tensor(layer + "ffn_gate_inp.weight", {n, n_experts});
  w.Tensor(layer + "ffn_gate_inp.bias", {n_experts});
  w.Tensor(layer + "ffn_gate_exps.weight", {n, ff, n_experts});
  w.Tensor(layer + "ffn_up_exps.weight", {n, ff, n_experts});
  w.Tensor(layer + "ffn_down_exps.weight", {ff, n, n_experts});
  w.Tensor(layer + "ffn_gate_exps.bias", {ff, n_experts});
  w.Tensor(layer + "ffn_up_exps.bias", {ff, n_experts});
  w.Tensor(layer + "ffn_down_exps.bias", {n, n_experts});
}

}  // namespace

std::string WriteRandomModel(const RandomModel& m) {
  Writer w(m);
  const int64_t n = m.n_embd;
  const bool gemma = m.arch.starts_with("gemma");
  const bool latent = m.arch == "deepseek2";
  const bool hybrid = m.arch == "lfm2";
  if (m.has_characters) {
    w.Characters();
  } else if (m.tokenizer.empty()) {
    w.Text("tokenizer.ggml.model", "none");
  } else {
    w.AllOf(m.tokenizer);
  }
  w.Text("general.architecture", m.arch);
  w.Number("vocab_size", m.n_vocab);
  w.Number("context_length", m.n_ctx);
  w.Number("embedding_length", m.n_embd);
  w.Number("block_count", m.n_layers);
  w.Number("feed_forward_length", m.arch == "bloom" ? 4 * m.n_embd : m.n_ff);
  w.Number("attention.head_count", m.n_heads);
  w.Real("attention.layer_norm_rms_epsilon", 1e-5f);
  w.Real("attention.layer_norm_epsilon", 1e-5f);
  w.Tensor("token_embd.weight", {n, m.n_vocab});
  if (m.arch == "bloom") {
    w.Number("attention.head_count_kv", m.n_heads);
    Bloom(w, m);
    return w.Save();
  }

  const auto is_conv = [&](uint32_t layer) { return hybrid && layer % 2 == 0; };
  if (hybrid) {
    w.Number("shortconv.l_cache", 3);
    std::vector<uint32_t> kv_heads;
    for (uint32_t i = 0; i < m.n_layers; ++i) {
      kv_heads.push_back(is_conv(i) ? 0 : m.n_kv_heads);
    }
    w.Numbers("attention.head_count_kv", kv_heads);
  } else {
    w.Number("attention.head_count_kv", latent ? 1 : m.n_kv_heads);
  }
  if (latent) {
    w.Number("leading_dense_block_count", m.n_layers);
    w.Number("attention.q_lora_rank", 48);
    w.Number("attention.kv_lora_rank", 2 * m.head_dim);
    w.Number("attention.key_length", 2 * m.head_dim + m.head_dim / 2);
    w.Number("attention.value_length", 2 * m.head_dim);
    w.Number("attention.key_length_mla", m.head_dim + m.head_dim / 2);
    w.Number("attention.value_length_mla", m.head_dim);
    w.Number("expert_feed_forward_length", m.n_ff);
    w.Number("expert_count", 0);
    w.Number("expert_shared_count", 0);
    w.Real("expert_weights_scale", 1);
    w.Number("rope.dimension_count", m.head_dim / 2);
  } else {
    w.Number("attention.key_length", m.head_dim);
    w.Number("attention.value_length", m.head_dim);
    w.Number("rope.dimension_count", m.head_dim);
  }
  if (m.long_rope > 0) {
    w.Text("llama.rope.scaling.type", "longrope");
    w.Number("rope.scaling.original_context_length", m.long_rope);
    w.Tensor("rope_factors_long.weight", {m.head_dim / 2});
    w.Tensor("rope_factors_short.weight", {m.head_dim / 2});
  }
  const bool multimodal = m.arch == "qwen2vl";
  if (multimodal) {
    const auto part = static_cast<int32_t>(m.head_dim / 8);
    w.Signed("rope.dimension_sections", {part, part, 2 * part, 0});
  }
  const bool oss = m.arch == "gpt-oss";
  if (oss || m.has_characters) w.Tensor("output.weight", {n, m.n_vocab});
  if (oss) {
    w.Number("expert_feed_forward_length", m.n_ff);
    w.Number("expert_count", 2);
    w.Number("expert_used_count", 1);
  }
  if (gemma || oss) {
    w.Number("attention.sliding_window", m.window);
    w.Real("attn_logit_softcapping", 2);
    w.Real("final_logit_softcapping", 30);
  }
  w.Tensor(hybrid ? "token_embd_norm.weight" : "output_norm.weight", {n});
  for (uint32_t i = 0; i < m.n_layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    w.Tensor(layer + "attn_norm.weight", {n});
    if (oss) {
      Attention(w, m, layer);
      Oss(w, m, layer);
      continue;
    }
    w.Tensor(layer + "ffn_norm.weight", {n});
    w.Tensor(layer + "ffn_gate.weight", {n, m.n_ff});
    w.Tensor(layer + "ffn_up.weight", {n, m.n_ff});
    w.Tensor(layer + "ffn_down.weight", {m.n_ff, n});
    if (is_conv(i)) {
      w.Tensor(layer + "shortconv.conv.weight", {3, n});
      w.Tensor(layer + "shortconv.in_proj.weight", {n, 3 * n});
      w.Tensor(layer + "shortconv.out_proj.weight", {n, n});
      continue;
    }
    if (latent) {
      LatentAttention(w, m, layer);
    } else {
      Attention(w, m, layer);
    }
    if (multimodal) {
      w.Tensor(layer + "attn_q.bias", {m.n_heads * m.head_dim});
      w.Tensor(layer + "attn_k.bias", {m.n_kv_heads * m.head_dim});
      w.Tensor(layer + "attn_v.bias", {m.n_kv_heads * m.head_dim});
    }
    if (hybrid || m.arch == "gemma3" || m.arch == "qwen3") {
      w.Tensor(layer + "attn_q_norm.weight", {m.head_dim});
      w.Tensor(layer + "attn_k_norm.weight", {m.head_dim});
    }
    if (gemma) {
      w.Tensor(layer + "post_attention_norm.weight", {n});
      w.Tensor(layer + "post_ffw_norm.weight", {n});
    }
  }
  return w.Save();
}

}  // namespace kvevict::tests
