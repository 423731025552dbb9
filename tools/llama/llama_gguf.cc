#include "tools/llama/llama_gguf.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvevict::tools {
namespace {

uint32_t GetU32(const GgufFile& file, const std::string& key) {
  const auto value = file.Get<uint64_t>(key);
  if (value == 0 || value > std::numeric_limits<int32_t>::max()) {
    file.Fail("metadata '" + key + "' is " + std::to_string(value));
  }
  return static_cast<uint32_t>(value);
}

double GetPositive(const GgufFile& file, const std::string& key,
                   double fallback) {
  const double value = file.GetOr<double>(key, fallback);
  if (!(value > 0) || !std::isfinite(value)) {
    file.Fail("metadata '" + key + "' is " + std::to_string(value));
  }
  return value;
}

// Reads tensors from the file by name, checks their shape first, and knows
// which ones nobody has read.
class TensorReader {
 public:
  explicit TensorReader(const GgufFile& file) : file_(file) {}

  bool Has(const std::string& name) const {
    return file_.FindTensor(name) != nullptr;
  }

  std::vector<float> Vector(const std::string& name, size_t n) {
    return Read(name, {n});
  }

  // The rows as the file has them, [n_rows, n_cols].
  std::vector<float> Rows(const std::string& name, size_t n_rows,
                          size_t n_cols) {
    return Read(name, {n_cols, n_rows});
  }

  Matrix Projection(const std::string& name, size_t n_outputs,
                    size_t n_inputs) {
    return Matrix::FromFile(n_outputs, n_inputs,
                            Rows(name, n_outputs, n_inputs));
  }

  // A forgotten tensor would silently make the model wrong.
  void CheckAllUsed() const {
    for (const auto& [name, tensor] : file_.tensors()) {
      if (!used_.contains(name)) {
        file_.Fail("tensor '" + std::string(name) +
                   "' is no part of the models this engine runs");
      }
    }
  }

 private:
  std::vector<float> Read(const std::string& name,
                          const std::vector<uint64_t>& dims) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) file_.Fail("tensor '" + name + "' is missing");
    if (tensor->dims != dims) {
      file_.Fail("tensor '" + name + "' has shape " + Shape(tensor->dims) +
                 ", expected " + Shape(dims));
    }
    used_.insert(tensor->name);
    std::vector<float> values(tensor->n_elems());
    Dequantize(tensor->type, tensor->data, values);
    return values;
  }

  static std::string Shape(const std::vector<uint64_t>& dims) {
    std::string text = "[";
    for (size_t i = 0; i < dims.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    }
    return text + "]";
  }

  const GgufFile& file_;
  std::set<std::string_view> used_;
};

std::vector<double> ReadInvFreq(const GgufFile& file, uint32_t head_dim,
                                TensorReader& tensors) {
  const std::string rope = "llama.rope.";
  const auto n_dims = file.GetOr<uint64_t>(rope + "dimension_count", head_dim);
  if (n_dims == 0 || n_dims % 2 != 0 || n_dims > head_dim) {
    file.Fail("llama.rope.dimension_count is " + std::to_string(n_dims) +
              ", head_dim is " + std::to_string(head_dim));
  }
  const double base = GetPositive(file, rope + "freq_base", 10000.0);
  std::vector<double> inv_freq =
      RopeInvFreq(static_cast<uint32_t>(n_dims), base);

  const auto scaling =
      file.GetOr<std::string_view>(rope + "scaling.type", "none");
  if (scaling == "linear") {
    const double factor = GetPositive(file, rope + "scaling.factor", 1.0);
    for (double& f : inv_freq) f /= factor;
  } else if (scaling != "none") {
    file.Fail("RoPE scaling '" + std::string(scaling) +
              "' is unsupported; none and linear are");
  }
  if (tensors.Has("rope_freqs.weight")) {  // Llama 3.1: a divisor per pair.
    const auto divisors = tensors.Vector("rope_freqs.weight", inv_freq.size());
    for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= divisors[i];
  }
  return inv_freq;
}

LlamaConfig ReadConfig(const GgufFile& file, TensorReader& tensors) {
  const auto architecture = file.Get<std::string_view>("general.architecture");
  if (architecture != "llama") {
    file.Fail("architecture '" + std::string(architecture) +
              "' is unsupported; this engine runs 'llama'");
  }
  LlamaConfig config;
  config.n_layers = GetU32(file, "llama.block_count");
  config.d_model = GetU32(file, "llama.embedding_length");
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2 ||
      embedding->dims[1] > std::numeric_limits<int32_t>::max()) {
    file.Fail("tensor 'token_embd.weight' is missing or no matrix");
  }
  // Sizes of activations follow from it.
  if (embedding->dims[0] != config.d_model) {
    file.Fail("embedding_length is " + std::to_string(config.d_model) +
              ", but rows of tensor 'token_embd.weight' have " +
              std::to_string(embedding->dims[0]) + " elements");
  }
  config.vocab_size = static_cast<uint32_t>(embedding->dims[1]);
  config.d_ff = GetU32(file, "llama.feed_forward_length");
  config.n_q_heads = GetU32(file, "llama.attention.head_count");
  config.n_kv_heads = file.Find("llama.attention.head_count_kv") == nullptr
                          ? config.n_q_heads
                          : GetU32(file, "llama.attention.head_count_kv");
  config.context_length = GetU32(file, "llama.context_length");
  config.norm_eps = static_cast<float>(
      GetPositive(file, "llama.attention.layer_norm_rms_epsilon", 1e-5));
  if (config.d_model % config.n_q_heads != 0 ||
      config.n_q_heads % config.n_kv_heads != 0) {
    file.Fail("embedding_length " + std::to_string(config.d_model) +
              ", head_count " + std::to_string(config.n_q_heads) +
              " and head_count_kv " + std::to_string(config.n_kv_heads) +
              " do not fit together");
  }
  config.head_dim = config.d_model / config.n_q_heads;
  for (const char* key :
       {"llama.attention.key_length", "llama.attention.value_length"}) {
    const auto length = file.GetOr<uint64_t>(key, config.head_dim);
    if (length != config.head_dim) {
      file.Fail(std::string(key) + " " + std::to_string(length) +
                " differs from embedding_length / head_count " +
                std::to_string(config.head_dim) + ": unsupported");
    }
  }
  config.inv_freq = ReadInvFreq(file, config.head_dim, tensors);
  return config;
}

LlamaLayer ReadLayer(const LlamaConfig& config, uint32_t index,
                     TensorReader& tensors) {
  const size_t d = config.d_model;
  const size_t kv_dim = size_t{config.n_kv_heads} * config.head_dim;
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto matrix = [&](const char* name, size_t n_out, size_t n_in) {
    return tensors.Projection(prefix + name + ".weight", n_out, n_in);
  };
  LlamaLayer layer;
  layer.attention_norm = tensors.Vector(prefix + "attn_norm.weight", d);
  layer.wq = matrix("attn_q", d, d);
  layer.wk = matrix("attn_k", kv_dim, d);
  layer.wv = matrix("attn_v", kv_dim, d);
  layer.wo = matrix("attn_output", d, d);
  layer.ffn_norm = tensors.Vector(prefix + "ffn_norm.weight", d);
  layer.w_gate = matrix("ffn_gate", config.d_ff, d);
  layer.w_up = matrix("ffn_up", config.d_ff, d);
  layer.w_down = matrix("ffn_down", d, config.d_ff);
  return layer;
}

// GGUF writes a space as U+2581.
std::string PlainSpaces(std::string_view piece) {
  constexpr std::string_view kSpace = "\xe2\x96\x81";
  std::string text;
  while (!piece.empty()) {
    const bool space = piece.starts_with(kSpace);
    text += space ? ' ' : piece[0];
    piece.remove_prefix(space ? kSpace.size() : 1);
  }
  return text;
}

PieceKind KindOf(int64_t token_type) {
  switch (token_type) {
    case 2:
      return PieceKind::kUnknown;
    case 3:  // Control.
    case 5:  // Unused.
      return PieceKind::kControl;
    case 6:
      return PieceKind::kByte;
  }
  return PieceKind::kNormal;
}

int32_t GetId(const GgufFile& file, const std::string& key, int32_t fallback,
              size_t vocab_size) {
  const auto id = file.GetOr<uint64_t>(key, static_cast<uint64_t>(fallback));
  if (id >= vocab_size) {
    file.Fail("metadata '" + key + "' is " + std::to_string(id) +
              ", outside the vocabulary of " + std::to_string(vocab_size));
  }
  return static_cast<int32_t>(id);
}

}  // namespace

LlamaWeights ReadGgufModel(const GgufFile& file) {
  TensorReader tensors(file);
  LlamaWeights weights;
  weights.config = ReadConfig(file, tensors);
  const LlamaConfig& config = weights.config;
  const size_t d = config.d_model;
  weights.token_embedding =
      tensors.Rows("token_embd.weight", config.vocab_size, d);
  for (uint32_t i = 0; i < config.n_layers; ++i) {
    weights.layers.push_back(ReadLayer(config, i, tensors));
  }
  weights.final_norm = tensors.Vector("output_norm.weight", d);
  weights.output =
      tensors.Has("output.weight")
          ? tensors.Projection("output.weight", config.vocab_size, d)
          : Matrix::FromFile(config.vocab_size, d, weights.token_embedding);
  tensors.CheckAllUsed();
  return weights;
}

Tokenizer ReadGgufTokenizer(const GgufFile& file) {
  const auto model = file.Get<std::string_view>("tokenizer.ggml.model");
  if (model != "llama") {
    file.Fail("tokenizer '" + std::string(model) +
              "' is unsupported; this engine has SentencePiece's ('llama')");
  }
  const auto texts =
      file.Get<std::vector<std::string_view>>("tokenizer.ggml.tokens");
  const auto scores = file.Get<std::vector<double>>("tokenizer.ggml.scores");
  const auto types =
      file.Get<std::vector<int64_t>>("tokenizer.ggml.token_type");
  if (texts.empty() || scores.size() != texts.size() ||
      types.size() != texts.size()) {
    file.Fail("the tokenizer has " + std::to_string(texts.size()) +
              " tokens, " + std::to_string(scores.size()) + " scores and " +
              std::to_string(types.size()) + " token types");
  }
  std::vector<TokenizerPiece> pieces(texts.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i] = {PlainSpaces(texts[i]), static_cast<float>(scores[i]),
                 KindOf(types[i])};
  }
  TokenizerOptions options;
  const std::string prefix = "tokenizer.ggml.";
  options.bos_id = GetId(file, prefix + "bos_token_id", kBosId, pieces.size());
  options.eos_id = GetId(file, prefix + "eos_token_id", kEosId, pieces.size());
  options.add_bos = file.GetOr(prefix + "add_bos_token", true);
  options.add_space_prefix = file.GetOr(prefix + "add_space_prefix", true);
  return Tokenizer(std::move(pieces), options);
}

}  // namespace kvevict::tools
