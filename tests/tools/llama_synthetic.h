// A tiny LLaMA model with random weights, and the logits of any.
#ifndef KVEVICT_TESTS_TOOLS_LLAMA_SYNTHETIC_H_
#define KVEVICT_TESTS_TOOLS_LLAMA_SYNTHETIC_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/llama/model.h"

namespace kvevict::tools {

// SplitMix64.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  uint64_t Below(uint64_t n) { return Next() % n; }

 private:
  uint64_t state_;
};

inline std::vector<int32_t> RandomIds(size_t n, uint64_t n_vocab) {
  TestRandom random(7);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(n_vocab));
  return ids;
}

struct SyntheticShape {
  uint32_t n_layers = 2, d_model = 64, d_ff = 96, n_q_heads = 4, n_kv_heads = 2;
  uint32_t head_dim = 16, rope_dims = 16;
  bool tied = false;
};

inline constexpr uint32_t kSyntheticVocab = 300;

inline LlamaWeights Synthetic(const SyntheticShape& s = {}) {
  TestRandom random(1);
  const auto vector = [&](size_t n) {
    std::vector<float> values(n);
    for (float& value : values) {
      value = std::ldexp(static_cast<float>(random.Below(255)) - 127.0f, -9);
    }
    return values;
  };
  const auto matrix = [&](size_t n_out, size_t n_in) {
    return Matrix::FromFile(n_out, n_in, vector(n_out * n_in));
  };
  LlamaWeights weights;
  weights.config = {.n_layers = s.n_layers,
                    .d_model = s.d_model,
                    .d_ff = s.d_ff,
                    .n_q_heads = s.n_q_heads,
                    .n_kv_heads = s.n_kv_heads,
                    .head_dim = s.head_dim,
                    .vocab_size = kSyntheticVocab,
                    .context_length = 128,
                    .inv_freq = RopeInvFreq(s.rope_dims, 500)};
  const size_t d = s.d_model, q = size_t{s.n_q_heads} * s.head_dim,
               kv = size_t{s.n_kv_heads} * s.head_dim;
  weights.token_embedding = vector(kSyntheticVocab * d);
  for (uint32_t l = 0; l < s.n_layers; ++l) {
    LlamaLayer& layer = weights.layers.emplace_back();
    layer.attention_norm = vector(d);
    layer.wq = matrix(q, d);
    layer.wk = matrix(kv, d);
    layer.wv = matrix(kv, d);
    layer.wo = matrix(d, q);
    layer.ffn_norm = vector(d);
    layer.w_gate = matrix(s.d_ff, d);
    layer.w_up = matrix(s.d_ff, d);
    layer.w_down = matrix(d, s.d_ff);
  }
  weights.final_norm = vector(d);
  weights.output =
      s.tied ? Matrix::FromFile(kSyntheticVocab, d, weights.token_embedding)
             : matrix(kSyntheticVocab, d);
  return weights;
}

// Logits of all tokens, [n, vocab_size], fed in chunks of at most `chunk`.
inline std::vector<float> AllLogits(LlamaModel& model,
                                    const std::vector<int32_t>& ids,
                                    kvevict_dtype dtype, size_t chunk) {
  const size_t n_vocab = model.config().vocab_size;
  std::vector<float> logits(ids.size() * n_vocab);
  KvCache cache(model.CacheShape(dtype, static_cast<uint32_t>(ids.size())));
  for (size_t at = 0; at < ids.size(); at += chunk) {
    const size_t n = std::min(chunk, ids.size() - at);
    model.Forward(std::span(ids).subspan(at, n), static_cast<uint32_t>(at),
                  cache, std::span(logits).subspan(at * n_vocab, n * n_vocab));
  }
  return logits;
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_LLAMA_SYNTHETIC_H_
