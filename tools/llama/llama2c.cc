#include "tools/llama/llama2c.h"

#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "tools/llama/byte_reader.h"
#include "tools/llama/mapped_file.h"

namespace kvevict::tools {
namespace {

// First word of the later export formats ("ak42"), which are laid out
// differently.
constexpr int32_t kLaterFormatMagic = 0x616b3432;

// No dimension of a real model is near this; with it no size computed from a
// damaged header can overflow 64 bits.
constexpr int32_t kMaxDimension = 1 << 18;

constexpr double kRopeBase = 10000.0;
constexpr float kNormEps = 1e-5f;

struct Header {
  LlamaConfig config;
  bool tied = false;  // The token embedding is the output matrix, too.
};

uint32_t ReadDimension(ByteReader& in, const char* name) {
  const auto value = in.Read<int32_t>(name);
  if (value <= 0 || value > kMaxDimension) {
    in.Fail("not a llama2.c model or damaged: " + std::string(name) + " is " +
            std::to_string(value));
  }
  return static_cast<uint32_t>(value);
}

Header ReadHeader(ByteReader& in) {
  Header header;
  LlamaConfig& config = header.config;
  ByteReader peek = in;
  if (peek.Read<int32_t>("the header") == kLaterFormatMagic) {
    in.Fail("llama2.c export version 1 or 2; only version 0 is read");
  }
  config.d_model = ReadDimension(in, "dim");
  config.d_ff = ReadDimension(in, "hidden_dim");
  config.n_layers = ReadDimension(in, "n_layers");
  config.n_q_heads = ReadDimension(in, "n_heads");
  config.n_kv_heads = ReadDimension(in, "n_kv_heads");
  const auto vocab_size = in.Read<int32_t>("vocab_size");
  config.context_length = ReadDimension(in, "seq_len");

  // A negative vocab_size says that the output matrix is a separate one.
  header.tied = vocab_size > 0;
  const int64_t n_vocab = std::abs(int64_t{vocab_size});
  if (n_vocab == 0 || n_vocab > kMaxDimension) {
    in.Fail("not a llama2.c model or damaged: vocab_size is " +
            std::to_string(vocab_size));
  }
  config.vocab_size = static_cast<uint32_t>(n_vocab);
  if (config.d_model % (2 * config.n_q_heads) != 0 ||
      config.n_q_heads % config.n_kv_heads != 0) {
    in.Fail("dim " + std::to_string(config.d_model) + ", n_heads " +
            std::to_string(config.n_q_heads) + " and n_kv_heads " +
            std::to_string(config.n_kv_heads) + " do not fit together");
  }
  config.head_dim = config.d_model / config.n_q_heads;
  config.norm_eps = kNormEps;
  config.inv_freq = RopeInvFreq(config.head_dim, kRopeBase);
  return header;
}

// The number of f32 values after the header, checked as a whole before any is
// copied.
uint64_t NumFloats(const Header& header) {
  const LlamaConfig& c = header.config;
  const uint64_t d = c.d_model;
  const uint64_t kv_dim = uint64_t{c.n_kv_heads} * c.head_dim;
  const uint64_t per_layer =
      2 * d + 2 * d * d + 2 * kv_dim * d + 3 * d * c.d_ff;
  const uint64_t rope_tables = uint64_t{c.context_length} * c.head_dim;
  const uint64_t embeddings = c.vocab_size * d * (header.tied ? 1 : 2);
  return embeddings + c.n_layers * per_layer + d + rope_tables;
}

std::vector<float> ReadFloats(ByteReader& in, size_t n) {
  std::vector<float> values(n);
  std::memcpy(values.data(), in.Take(n * sizeof(float), "weights").data(),
              n * sizeof(float));
  return values;
}

Matrix ReadMatrix(ByteReader& in, size_t n_outputs, size_t n_inputs) {
  return Matrix::FromFile(n_outputs, n_inputs,
                          ReadFloats(in, n_outputs * n_inputs));
}

}  // namespace

LlamaWeights ReadLlama2cModel(const std::string& path) {
  const MappedFile file(path);
  ByteReader in(path, file.bytes());
  const Header header = ReadHeader(in);
  const LlamaConfig& config = header.config;
  const uint64_t expected = NumFloats(header) * sizeof(float);
  if (in.remaining() != expected) {
    in.Fail("the header promises " + std::to_string(expected) +
            " bytes of weights, the file has " +
            std::to_string(in.remaining()));
  }

  const size_t d = config.d_model;
  const size_t kv_dim = size_t{config.n_kv_heads} * config.head_dim;
  LlamaWeights weights;
  weights.config = config;
  weights.layers.resize(config.n_layers);
  weights.token_embedding = ReadFloats(in, config.vocab_size * d);
  // Each kind of weight is stored together for all layers.
  auto& layers = weights.layers;
  for (auto& layer : layers) layer.attention_norm = ReadFloats(in, d);
  for (auto& layer : layers) layer.wq = ReadMatrix(in, d, d);
  for (auto& layer : layers) layer.wk = ReadMatrix(in, kv_dim, d);
  for (auto& layer : layers) layer.wv = ReadMatrix(in, kv_dim, d);
  for (auto& layer : layers) layer.wo = ReadMatrix(in, d, d);
  for (auto& layer : layers) layer.ffn_norm = ReadFloats(in, d);
  for (auto& layer : layers) layer.w_gate = ReadMatrix(in, config.d_ff, d);
  for (auto& layer : layers) layer.w_down = ReadMatrix(in, d, config.d_ff);
  for (auto& layer : layers) layer.w_up = ReadMatrix(in, config.d_ff, d);
  weights.final_norm = ReadFloats(in, d);
  // Two RoPE tables of older versions; the angles are computed instead.
  in.Take(uint64_t{config.context_length} * config.head_dim * sizeof(float),
          "the RoPE tables");
  weights.output = header.tied ? Matrix::FromFile(config.vocab_size, d,
                                                  weights.token_embedding)
                               : ReadMatrix(in, config.vocab_size, d);
  return weights;
}

Tokenizer ReadLlama2cTokenizer(const std::string& path, uint32_t vocab_size) {
  const MappedFile file(path);
  ByteReader in(path, file.bytes());
  in.Read<uint32_t>("the longest piece's length");
  // A piece takes at least its score and its length.
  if (vocab_size > in.remaining() / 8) {
    in.Fail("file is truncated: it cannot hold the model's " +
            std::to_string(vocab_size) + " pieces");
  }
  std::vector<TokenizerPiece> pieces(vocab_size);
  for (uint32_t id = 0; id < vocab_size; ++id) {
    const std::string what = "piece " + std::to_string(id);
    pieces[id].score = in.Read<float>(what);
    const auto n_bytes = in.Read<uint32_t>(what);
    const auto bytes = in.Take(n_bytes, what);
    pieces[id].text.assign(bytes.begin(), bytes.end());
    pieces[id].kind = id == kUnknownId               ? PieceKind::kUnknown
                      : id == kBosId || id == kEosId ? PieceKind::kControl
                                                     : PieceKind::kNormal;
  }
  if (in.remaining() != 0) {
    in.Fail("the tokenizer has more than the model's " +
            std::to_string(vocab_size) + " pieces");
  }
  return Tokenizer(std::move(pieces), TokenizerOptions{});
}

}  // namespace kvevict::tools
