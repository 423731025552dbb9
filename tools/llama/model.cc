#include "tools/llama/model.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "tools/engine/matmul.h"

namespace kvevict::tools {
namespace {

// x * sigmoid(x)
float Silu(float x) { return x / (1.0f + std::exp(-x)); }

}  // namespace

LlamaModel::LlamaModel(LlamaWeights weights, ThreadPool& pool,
                       const char* simd_target)
    : weights_(std::move(weights)), pool_(pool), attention_(pool, simd_target) {
  const LlamaConfig& c = config();
  const size_t q_width = size_t{c.n_q_heads} * c.head_dim;
  const size_t kv_width = size_t{c.n_kv_heads} * c.head_dim;
  residual_.resize(kMaxChunk * size_t{c.d_model});
  normed_.resize(kMaxChunk * size_t{c.d_model});
  q_.resize(kMaxChunk * q_width);
  k_.resize(kMaxChunk * kv_width);
  v_.resize(kMaxChunk * kv_width);
  attended_.resize(kMaxChunk * q_width);
  gate_.resize(kMaxChunk * size_t{c.d_ff});
  up_.resize(kMaxChunk * size_t{c.d_ff});
  cos_.resize(kMaxChunk * c.inv_freq.size());
  sin_.resize(kMaxChunk * c.inv_freq.size());
}

KvShape LlamaModel::CacheShape(kvevict_dtype dtype, uint32_t capacity) const {
  const LlamaConfig& c = config();
  return {.n_layers = c.n_layers,
          .n_kv_heads = c.n_kv_heads,
          .k_head_dim = c.head_dim,
          .v_head_dim = c.head_dim,
          .dtype = dtype,
          .capacity = capacity};
}

std::vector<float> LlamaModel::ProjectedNorms(uint32_t layer,
                                              const float* values,
                                              uint32_t n_rows) const {
  const LlamaConfig& c = config();
  const uint32_t group = c.n_q_heads / c.n_kv_heads;
  const Matrix& wo = weights_.layers[layer].wo;
  std::vector<float> norms(size_t{c.n_kv_heads} * n_rows);
  std::vector<float> products(size_t{n_rows} * c.d_model);
  for (uint32_t q = 0; q < c.n_q_heads; ++q) {
    const size_t head = q / group;
    MatMul({.n_rows = n_rows,
            .n_inner = c.head_dim,
            .n_cols = c.d_model,
            .a = values + head * c.head_dim,
            .a_stride = size_t{c.n_kv_heads} * c.head_dim,
            .b = &wo.elems[size_t{q} * c.head_dim * c.d_model],
            .b_stride = c.d_model,
            .c = products.data(),
            .c_stride = c.d_model},
           pool_);
    for (size_t row = 0; row < n_rows; ++row) {
      const float* product = &products[row * c.d_model];
      double sum = 0;
      for (uint32_t i = 0; i < c.d_model; ++i) sum += std::abs(product[i]);
      norms[head * n_rows + row] += static_cast<float>(sum / group);
    }
  }
  return norms;
}

void LlamaModel::Forward(std::span<const int32_t> tokens,
                         uint32_t first_position, KvCache& cache,
                         std::span<float> logits,
                         const QueryObserver& observe) {
  const size_t d_model = config().d_model;
  const uint32_t n_tokens = static_cast<uint32_t>(tokens.size());
  for (uint32_t i = 0; i < n_tokens; ++i) {
    std::memcpy(&residual_[i * d_model],
                &weights_.token_embedding[tokens[i] * d_model],
                d_model * sizeof(float));
  }
  ComputeAngles(n_tokens, first_position);
  for (uint32_t l = 0; l < config().n_layers; ++l) {
    Attend(weights_.layers[l], l, n_tokens, first_position, cache, observe);
    FeedForward(weights_.layers[l], n_tokens);
  }
  if (logits.empty()) return;
  const uint32_t n_wanted = logits.size() == config().vocab_size ? 1 : n_tokens;
  const float* last = &residual_[(n_tokens - n_wanted) * d_model];
  Normalize(last, weights_.final_norm, n_wanted, normed_.data());
  Project(weights_.output, normed_.data(), n_wanted, logits.data());
}

void LlamaModel::Attend(const LlamaLayer& layer, uint32_t index,
                        uint32_t n_tokens, uint32_t first_position,
                        KvCache& cache, const QueryObserver& observe) {
  const LlamaConfig& c = config();
  Normalize(residual_.data(), layer.attention_norm, n_tokens, normed_.data());
  Project(layer.wq, normed_.data(), n_tokens, q_.data());
  Project(layer.wk, normed_.data(), n_tokens, k_.data());
  Project(layer.wv, normed_.data(), n_tokens, v_.data());
  RotateHeads(q_.data(), n_tokens, c.n_q_heads);
  RotateHeads(k_.data(), n_tokens, c.n_kv_heads);
  const size_t kv_width = layer.wk.n_outputs;
  cache.Append(index, n_tokens, k_.data(), kv_width, v_.data(), kv_width);
  if (observe) observe(index, q_.data(), n_tokens, first_position);
  attention_.Attend({.cache = &cache,
                     .layer = index,
                     .queries = q_.data(),
                     .n_queries = n_tokens,
                     .n_q_heads = c.n_q_heads,
                     .out = attended_.data()});
  Project(layer.wo, attended_.data(), n_tokens, residual_.data(),
          /*accumulate=*/true);
}

void LlamaModel::FeedForward(const LlamaLayer& layer, uint32_t n_tokens) {
  const size_t d_ff = config().d_ff;
  Normalize(residual_.data(), layer.ffn_norm, n_tokens, normed_.data());
  Project(layer.w_gate, normed_.data(), n_tokens, gate_.data());
  Project(layer.w_up, normed_.data(), n_tokens, up_.data());
  pool_.For(n_tokens, [&](uint32_t i, uint32_t) {
    float* gate = &gate_[i * d_ff];
    const float* up = &up_[i * d_ff];
    for (size_t j = 0; j < d_ff; ++j) gate[j] = Silu(gate[j]) * up[j];
  });
  Project(layer.w_down, gate_.data(), n_tokens, residual_.data(),
          /*accumulate=*/true);
}

// RMSNorm.
void LlamaModel::Normalize(const float* rows, const std::vector<float>& weight,
                           uint32_t n_tokens, float* out) {
  const size_t n = weight.size();
  for (uint32_t i = 0; i < n_tokens; ++i, rows += n, out += n) {
    double sum = 0;
    for (size_t j = 0; j < n; ++j) sum += double{rows[j]} * rows[j];
    const float scale = static_cast<float>(
        1.0 / std::sqrt(sum / static_cast<double>(n) + config().norm_eps));
    for (size_t j = 0; j < n; ++j) out[j] = weight[j] * (scale * rows[j]);
  }
}

// Angles in double: in f32 they would be off by 1e-3 at position 16K.
void LlamaModel::ComputeAngles(uint32_t n_tokens, uint32_t first_position) {
  const std::vector<double>& inv_freq = config().inv_freq;
  size_t at = 0;
  for (uint32_t i = 0; i < n_tokens; ++i) {
    const auto position = static_cast<double>(uint64_t{first_position} + i);
    for (const double frequency : inv_freq) {
      const double angle = position * frequency;
      cos_[at] = static_cast<float>(std::cos(angle));
      sin_[at] = static_cast<float>(std::sin(angle));
      ++at;
    }
  }
}

void LlamaModel::RotateHeads(float* rows, uint32_t n_tokens,
                             uint32_t n_heads) const {
  const size_t n_pairs = config().inv_freq.size();
  for (uint32_t i = 0; i < n_tokens; ++i) {
    const float* cosines = &cos_[i * n_pairs];
    const float* sines = &sin_[i * n_pairs];
    for (uint32_t h = 0; h < n_heads; ++h, rows += config().head_dim) {
      for (size_t p = 0; p < n_pairs; ++p) {
        const float x = rows[2 * p];
        const float y = rows[2 * p + 1];
        rows[2 * p] = x * cosines[p] - y * sines[p];
        rows[2 * p + 1] = x * sines[p] + y * cosines[p];
      }
    }
  }
}

void LlamaModel::Project(const Matrix& matrix, const float* in,
                         uint32_t n_tokens, float* out, bool accumulate) {
  MatMul({.n_rows = n_tokens,
          .n_inner = static_cast<uint32_t>(matrix.n_inputs),
          .n_cols = static_cast<uint32_t>(matrix.n_outputs),
          .a = in,
          .a_stride = matrix.n_inputs,
          .b = matrix.elems.data(),
          .b_stride = matrix.n_outputs,
          .c = out,
          .c_stride = matrix.n_outputs,
          .accumulate = accumulate},
         pool_);
}

}  // namespace kvevict::tools
