// Presets that score by the attention of all queries, or of queries to come.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/oracle/preset_rules.h"
#include "tests/oracle/query_centers.h"

namespace kvevict::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

// ---- H2O ----

namespace {

// Sums over all queries, mean of the group. The last `recent` stay.
Heads HeavyHitters(const oracle_prompt& p, const oracle_sizes& s,
                   uint32_t layer) {
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      return SumOfRows(Attention(p, layer, q, p.n_tokens));
    }));
    row.resize(p.n_tokens - s.window);
    heads.push_back(Best(WithWindow(row, p.n_tokens), Tokens(s)));
  }
  return heads;
}

}  // namespace

// H2OKVCache_LayerWise at the end of a prompt, for models without grouped queries.
Heads H2oOriginal(const oracle_prompt& p, const oracle_sizes& s,
                  uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  return HeavyHitters(p, s, layer);
}

Heads H2oKvf(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens < Tokens(s)) return AllOf(p);
  return HeavyHitters(p, s, layer);
}

// Column sums divided by the S - j queries that see j. Nothing is forced.
Heads Observed(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      return SumOfRows(Attention(p, layer, q, p.n_tokens));
    }));
    for (uint32_t j = 0; j < p.n_tokens; ++j) row[j] /= p.n_tokens - j;
    heads.push_back(Best(row, Truncated(p.n_tokens, s.budget)));
  }
  return heads;
}

// ---- Queries to come ----

// softmax(mu.k / sqrt(D) + k'Ck / 2D) after 4 sinks, mean of the group, times ||v||.
Heads ExpectedAttentionOf(const oracle_prompt& p, const oracle_sizes& s,
                          uint32_t layer) {
  constexpr uint32_t kSinks = 4;
  const uint32_t d = p.head_dim;
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      const size_t head = size_t{layer} * p.n_q_heads + q;
      const float* const mean = p.mean + head * d;
      const float* const covariance = p.covariance + head * d * d;
      Row logits(p.n_tokens, 0.0);
      double sum = 0.0;
      for (uint32_t j = kSinks; j < p.n_tokens; ++j) {
        const float* const key = KeyOf(p, layer, h, j);
        double linear = 0.0, square = 0.0;
        for (uint32_t a = 0; a < d; ++a) {
          linear += double{mean[a]} * key[a];
          double of_row = 0.0;
          for (uint32_t b = 0; b < d; ++b) {
            of_row += double{covariance[a * d + b]} * key[b];
          }
          square += key[a] * of_row;
        }
        logits[j] =
            std::exp(linear / std::sqrt(double{1} * d) + square / (2.0 * d));
        sum += logits[j];
      }
      for (double& v : logits) v /= sum;
      return logits;
    }));
    for (uint32_t j = 0; j < p.n_tokens; ++j) {
      row[j] *= NormOf(ValueOf(p, layer, h, j), d);
    }
    std::fill_n(row.begin(), kSinks, kInfinity);
    heads.push_back(Best(row, Truncated(p.n_tokens, s.budget)));
  }
  return heads;
}

namespace {

// Union: the largest standardised score of any layer and query head. The prompt's
// tokens stay beside; n_keep of all.
Heads Union(const oracle_prompt& p, uint32_t n_prompt, uint32_t n_keep) {
  const uint32_t group = p.n_q_heads / p.n_kv_heads;
  const uint32_t n_pairs = p.head_dim / 2;
  Row largest(p.n_tokens, -kInfinity);
  double bound = 0.0;
  for (uint32_t i = 0; i < p.n_layers * p.n_kv_heads; ++i) {
    oracle_centers in = {};
    in.keys = p.keys + size_t{i} * p.n_tokens * p.head_dim;
    in.positions = p.positions;
    in.n_tokens = p.n_tokens;
    in.n_seen = p.n_seen == 0 ? p.n_tokens : p.n_seen;
    in.head_dim = p.head_dim;
    in.n_sink = n_prompt;
    in.group = group;
    in.n_pairs = n_pairs;
    in.inv_freq = p.inv_freq;
    in.centers = p.centers + size_t{i} * group * 3 * n_pairs;
    in.center_stride = size_t{3} * n_pairs;
    Row scores(size_t{group} * p.n_tokens), bounds(scores.size());
    oracle_query_centers(&in, nullptr, scores.data(), bounds.data());
    for (size_t j = 0; j < scores.size(); ++j) {
      double& at = largest[j % p.n_tokens];
      at = std::max(at, scores[j]);
      bound = std::max(bound, bounds[j]);
    }
  }
  std::fill_n(largest.begin(), n_prompt, kInfinity);
  return Heads(p.n_kv_heads, Best(largest, n_keep, 2 * bound));
}

}  // namespace

// TriAttention at any time, with `window` tokens of a prompt.
Heads TriAttention(const oracle_prompt& p, const oracle_sizes& s, uint32_t) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  return Union(p, s.window, Tokens(s));
}

// Its command line: a slack of `block` tokens after the prompt, which is in the budget.
Heads TriAttentionDecode(const oracle_prompt& p, const oracle_sizes& s,
                         uint32_t) {
  if (p.n_prompt == 0 || p.n_tokens < Tokens(s) + s.block) return AllOf(p);
  return Union(p, p.n_prompt, Tokens(s));
}

// TensorRT-LLM: the budget counts decoded tokens.
Heads TriAttentionTrt(const oracle_prompt& p, const oracle_sizes& s, uint32_t) {
  const uint32_t n_keep = p.n_prompt + Tokens(s);
  if (p.n_prompt == 0 || p.n_tokens <= n_keep) return AllOf(p);
  return Union(p, p.n_prompt, n_keep);
}

}  // namespace kvevict::oracle
