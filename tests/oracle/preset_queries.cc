// Presets that score by the attention of all queries, or of queries to come.
#include <algorithm>
#include <cmath>

#include "tests/oracle/numbers.h"
#include "tests/oracle/preset_rules.h"
#include "tests/oracle/query_centers.h"
#include "tests/oracle/scores.h"

namespace kvevict::oracle {
// ---- H2O ----

// Sums over all queries, mean of the group. The last `recent` stay. The authors'
// H2OKVCache_LayerWise at the end of a prompt is for models without grouped queries.
Heads H2oKvf(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  return OfEach(p, [&](uint32_t h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      return SumOfRows(Attention(p, layer, q, p.n_tokens));
    }));
    row.resize(p.n_tokens - s.window);
    return Best(WithWindow(row, p.n_tokens), Tokens(s));
  });
}

// Column sums divided by the S - j queries that see j. Nothing is forced.
Heads Observed(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  return OfEach(p, [&](uint32_t h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      return SumOfRows(Attention(p, layer, q, p.n_tokens));
    }));
    for (uint32_t j = 0; j < p.n_tokens; ++j) row[j] /= p.n_tokens - j;
    return Best(row, Truncated(p.n_tokens, s.budget));
  });
}

// ---- Queries to come ----

// softmax(mu.k / sqrt(D) + k'Ck / 2D) after 4 sinks, mean of the group, times ||v||.
Heads ExpectedAttentionOf(const oracle_prompt& p, const oracle_sizes& s,
                          uint32_t layer) {
  constexpr uint32_t kSinks = 4;
  const uint32_t d = p.head_dim;
  return OfEach(p, [&](uint32_t h) {
    const uint32_t group = p.n_q_heads / p.n_kv_heads;
    const size_t head = size_t{layer} * p.n_q_heads + size_t{h} * group;
    Row all(size_t{group} * p.n_tokens), bounds(all.size());
    oracle_expected_rows(p.n_tokens, kSinks, group, d,
                         1.0 / std::sqrt(double{1} * d), KeyOf(p, layer, h, 0),
                         p.mean + head * d, p.covariance + head * d * d,
                         nullptr, all.data(), bounds.data());
    Row row(p.n_tokens, 0.0);
    for (size_t i = 0; i < all.size(); ++i)
      row[i % p.n_tokens] += all[i] / group;
    for (uint32_t j = 0; j < p.n_tokens; ++j) {
      row[j] *= NormOf(ValueOf(p, layer, h, j), d);
    }
    std::fill_n(row.begin(), kSinks, kInfinity);
    return Best(row, Truncated(p.n_tokens, s.budget));
  });
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
    in.n_tokens = p.n_tokens;
    in.n_seen = p.n_tokens;
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
