// The LLaMA forward pass in double precision and plain loops. It shares only
// the loaded weights with the engine.
#ifndef KVEVICT_TESTS_TOOLS_LLAMA_ORACLE_H_
#define KVEVICT_TESTS_TOOLS_LLAMA_ORACLE_H_

#include <cmath>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/llama/weights.h"

namespace kvevict::tools {

class LlamaOracle {
 public:
  using Row = std::vector<double>;

  explicit LlamaOracle(const LlamaWeights& weights)
      : w_(weights), keys_(weights.layers.size()), values_(keys_.size()) {}

  // Feeds a token at the next position; returns its logits.
  Row Step(int32_t token) {
    const LlamaConfig& c = w_.config;
    const size_t position = n_seen_++;
    Row x(c.d_model);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = w_.token_embedding[token * x.size() + i];
    }
    for (size_t l = 0; l < w_.layers.size(); ++l) {
      const LlamaLayer& layer = w_.layers[l];
      const Row normed = Norm(x, layer.attention_norm);
      Row q = Times(normed, layer.wq);
      Row k = Times(normed, layer.wk);
      Rotate(q, position);
      Rotate(k, position);
      keys_[l].push_back(std::move(k));
      values_[l].push_back(Times(normed, layer.wv));
      Add(x, Times(Attend(l, q), layer.wo));

      const Row h = Norm(x, layer.ffn_norm);
      Row gate = Times(h, layer.w_gate);
      const Row up = Times(h, layer.w_up);
      for (size_t i = 0; i < gate.size(); ++i) {
        gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      }
      Add(x, Times(gate, layer.w_down));
    }
    return Times(Norm(x, w_.final_norm), w_.output);
  }

  // Hides a position from the head, as an eviction does.
  void Hide(size_t layer, size_t kv_head, size_t position) {
    hidden_.insert({layer, kv_head, position});
  }

 private:
  static Row Times(const Row& x, const Matrix& matrix) {
    Row y(matrix.n_outputs);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t o = 0; o < y.size(); ++o) {
        y[o] += x[i] * matrix.elems[i * y.size() + o];
      }
    }
    return y;
  }

  static void Add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Row Norm(const Row& x, const std::vector<float>& weight) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double rms =
        std::sqrt(sum / static_cast<double>(x.size()) + w_.config.norm_eps);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / rms * weight[i];
    return y;
  }

  void Rotate(Row& heads, size_t position) const {
    const std::vector<double>& inv_freq = w_.config.inv_freq;
    for (size_t at = 0; at < heads.size(); at += w_.config.head_dim) {
      for (size_t p = 0; p < inv_freq.size(); ++p) {
        const double angle = static_cast<double>(position) * inv_freq[p];
        double& x = heads[at + 2 * p];
        double& y = heads[at + 2 * p + 1];
        const double turned = x * std::sin(angle) + y * std::cos(angle);
        x = x * std::cos(angle) - y * std::sin(angle);
        y = turned;
      }
    }
  }

  Row Attend(size_t layer, const Row& q) const {
    const size_t d = w_.config.head_dim;
    const size_t group = w_.config.n_q_heads / w_.config.n_kv_heads;
    Row out(q.size());
    for (size_t h = 0; h < w_.config.n_q_heads; ++h) {
      const size_t kv = h / group;
      double sum = 0;
      for (size_t t = 0; t < n_seen_; ++t) {
        if (hidden_.contains({layer, kv, t})) continue;
        double dot = 0;
        for (size_t i = 0; i < d; ++i) {
          dot += q[h * d + i] * keys_[layer][t][kv * d + i];
        }
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(d)));
        sum += weight;
        for (size_t i = 0; i < d; ++i) {
          out[h * d + i] += weight * values_[layer][t][kv * d + i];
        }
      }
      for (size_t i = 0; i < d; ++i) out[h * d + i] /= sum;
    }
    return out;
  }

  const LlamaWeights& w_;
  size_t n_seen_ = 0;
  std::vector<std::vector<Row>> keys_, values_;  // [layer][position]
  // {layer, KV head, position}
  std::set<std::tuple<size_t, size_t, size_t>> hidden_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_LLAMA_ORACLE_H_
