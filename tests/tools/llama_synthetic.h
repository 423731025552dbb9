// A tiny LLaMA model and GGUF files of it, made by the tests.
#ifndef KVEVICT_TESTS_TOOLS_LLAMA_SYNTHETIC_H_
#define KVEVICT_TESTS_TOOLS_LLAMA_SYNTHETIC_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/tools/llama_test_util.h"
#include "tools/llama/ggml_type.h"

namespace kvevict::tools {

// Writes GGUF, independently of the reader.
class GgufBuilder {
 public:
  void U32(const std::string& key, uint32_t value) {
    Key(key, 4);
    Put(meta_, value);
  }
  void F32(const std::string& key, float value) {
    Key(key, 6);
    Put(meta_, value);
  }
  void String(const std::string& key, const std::string& value) {
    Key(key, 8);
    PutString(meta_, value);
  }
  void Strings(const std::string& key, const std::vector<std::string>& values) {
    Array(key, 8, values.size());
    for (const auto& value : values) PutString(meta_, value);
  }
  template <typename T>
  void Numbers(const std::string& key, uint32_t type,
               const std::vector<T>& values) {
    Array(key, type, values.size());
    for (const T value : values) Put(meta_, value);
  }
  // `dims` have the innermost first.
  void Tensor(const std::string& name, const std::vector<uint64_t>& dims,
              GgmlType type, const std::vector<uint8_t>& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    TensorAt(name, dims, type, data_.size());
    data_.insert(data_.end(), data.begin(), data.end());
  }
  // The data may exist or not.
  void TensorAt(const std::string& name, const std::vector<uint64_t>& dims,
                GgmlType type, uint64_t offset) {
    PutString(tensors_, name);
    Put(tensors_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) Put(tensors_, dim);
    Put(tensors_, static_cast<uint32_t>(type));
    Put(tensors_, offset);
    ++n_tensors_;
  }
  std::vector<uint8_t> Build(uint32_t version = 3) const {
    std::vector<uint8_t> file = {'G', 'G', 'U', 'F'};
    Put(file, version);
    Put(file, n_tensors_);
    Put(file, n_meta_);
    file.insert(file.end(), meta_.begin(), meta_.end());
    file.insert(file.end(), tensors_.begin(), tensors_.end());
    file.resize((file.size() + 31) / 32 * 32);
    file.insert(file.end(), data_.begin(), data_.end());
    return file;
  }

 private:
  template <typename T>
  static void Put(std::vector<uint8_t>& out, T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof(T));
  }
  static void PutString(std::vector<uint8_t>& out, const std::string& text) {
    Put(out, uint64_t{text.size()});
    out.insert(out.end(), text.begin(), text.end());
  }
  void Key(const std::string& key, uint32_t type) {
    PutString(meta_, key);
    Put(meta_, type);
    ++n_meta_;
  }
  void Array(const std::string& key, uint32_t type, uint64_t n) {
    Key(key, 9);
    Put(meta_, type);
    Put(meta_, n);
  }

  std::vector<uint8_t> meta_, tensors_, data_;
  uint64_t n_meta_ = 0;
  uint64_t n_tensors_ = 0;
};

// Weights k / 512 with |k| <= 127: exact in f32, f16, bf16 and q8_0 (scale
// 2^-9), so a file of any type must load as the same model.
inline std::vector<int> SyntheticQuants(std::string_view tensor_name,
                                        size_t n) {
  TestRandom random(std::hash<std::string_view>{}(tensor_name));
  std::vector<int> quants(n);
  for (int& q : quants) q = static_cast<int>(random.Below(255)) - 127;
  return quants;
}

inline std::vector<uint8_t> EncodeQuants(const std::vector<int>& quants,
                                         GgmlType type) {
  std::vector<uint8_t> bytes;
  const auto put = [&bytes](const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), p, p + n);
  };
  for (size_t i = 0; i < quants.size(); ++i) {
    const float value = std::ldexp(static_cast<float>(quants[i]), -9);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (type == GgmlType::kF32) {
      put(&bits, 4);
    } else if (type == GgmlType::kBf16) {
      put(reinterpret_cast<const uint8_t*>(&bits) + 2, 2);
    } else if (type == GgmlType::kF16) {
      // All values are zero or normal in both formats: rebias the exponent.
      const uint16_t half =
          value == 0 ? 0
                     : static_cast<uint16_t>((bits >> 16 & 0x8000) |
                                             ((bits >> 23 & 0xff) - 112) << 10 |
                                             (bits >> 13 & 0x3ff));
      put(&half, 2);
    } else {
      const uint16_t scale = (15 - 9) << 10;  // 2^-9
      if (i % 32 == 0) put(&scale, 2);
      const auto quant = static_cast<int8_t>(quants[i]);
      put(&quant, 1);
    }
  }
  return bytes;
}

struct SyntheticShape {
  uint32_t n_layers = 2, d_model = 64, d_ff = 96, n_q_heads = 4, n_kv_heads = 2;
  uint32_t vocab_size = 300, rope_dims = 16;
  bool tied = false;
};

// A model in GGUF with matrices of `type`; norms are f32, as converters write
// them.
inline GgufBuilder SyntheticModel(GgmlType type, const SyntheticShape& s = {}) {
  GgufBuilder gguf;
  gguf.String("general.architecture", "llama");
  gguf.U32("llama.block_count", s.n_layers);
  gguf.U32("llama.context_length", 128);
  gguf.U32("llama.embedding_length", s.d_model);
  gguf.U32("llama.feed_forward_length", s.d_ff);
  gguf.U32("llama.attention.head_count", s.n_q_heads);
  gguf.U32("llama.attention.head_count_kv", s.n_kv_heads);
  gguf.U32("llama.rope.dimension_count", s.rope_dims);
  gguf.F32("llama.rope.freq_base", 500.0f);
  gguf.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);

  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> kinds = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    snprintf(text, sizeof(text), "<0x%02X>", byte);
    pieces.push_back(text);
    kinds.push_back(6);
  }
  for (char letter = 'a'; pieces.size() < s.vocab_size; ++letter) {
    pieces.push_back(std::string(1, letter));
    kinds.push_back(1);
  }
  gguf.String("tokenizer.ggml.model", "llama");
  gguf.Strings("tokenizer.ggml.tokens", pieces);
  gguf.Numbers("tokenizer.ggml.scores", 6,
               std::vector<float>(pieces.size(), -1.0f));
  gguf.Numbers("tokenizer.ggml.token_type", 5, kinds);

  const auto matrix = [&](const std::string& name, uint64_t n_out,
                          uint64_t n_in) {
    gguf.Tensor(name, {n_in, n_out}, type,
                EncodeQuants(SyntheticQuants(name, n_in * n_out), type));
  };
  const auto norm = [&](const std::string& name) {
    gguf.Tensor(name, {s.d_model}, GgmlType::kF32,
                EncodeQuants(SyntheticQuants(name, s.d_model), GgmlType::kF32));
  };
  const uint64_t d = s.d_model;
  const uint64_t kv = d / s.n_q_heads * s.n_kv_heads;
  matrix("token_embd.weight", s.vocab_size, d);
  for (uint32_t l = 0; l < s.n_layers; ++l) {
    const std::string prefix = "blk." + std::to_string(l) + ".";
    norm(prefix + "attn_norm.weight");
    matrix(prefix + "attn_q.weight", d, d);
    matrix(prefix + "attn_k.weight", kv, d);
    matrix(prefix + "attn_v.weight", kv, d);
    matrix(prefix + "attn_output.weight", d, d);
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "ffn_gate.weight", s.d_ff, d);
    matrix(prefix + "ffn_up.weight", s.d_ff, d);
    matrix(prefix + "ffn_down.weight", d, s.d_ff);
  }
  norm("output_norm.weight");
  if (!s.tied) matrix("output.weight", s.vocab_size, d);
  return gguf;
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_LLAMA_SYNTHETIC_H_
