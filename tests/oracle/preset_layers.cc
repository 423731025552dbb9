// Presets that find budgets of layers from their attention.
#include <algorithm>
#include <cmath>

#include "tests/oracle/layer_measures.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
namespace {

// The unbiased variance of one token over the rows.
double VarianceOf(const Rows& rows, uint32_t token) {
  Row of_token;
  for (const Row& row : rows) of_token.push_back(row[token]);
  return oracle_variance(of_token.data(), static_cast<uint32_t>(rows.size()));
}

// CAKE: mean + 200 times variance over rows, for a query head's past.
Row CakeRow(const Rows& rows, uint32_t n_past) {
  const Row mean = MeanOfRows(rows);
  Row out(n_past);
  for (uint32_t j = 0; j < n_past; ++j) {
    out[j] = mean[j] + 200.0 * VarianceOf(rows, j);
  }
  return out;
}

// Entropy of the past's weights times their variance. Both temperatures are 1.
double Preference(const oracle_prompt& p, uint32_t layer, uint32_t window) {
  const uint32_t n_past = p.n_tokens - window;
  double entropy = 0.0, variance = 0.0;
  for (uint32_t q = 0; q < p.n_q_heads; ++q) {
    const Rows rows = Attention(p, layer, q, window);
    for (uint32_t j = 0; j < n_past; ++j) {
      for (const Row& row : rows) {
        entropy -= row[j] * std::log(row[j] + 1e-10);
      }
      variance += VarianceOf(rows, j);
    }
  }
  return entropy * variance;
}

struct Shares {
  std::vector<uint64_t> n;
  bool in_doubt;  // f32 may round a share down to the number before
};

// Each layer's part of (cap - window) tokens per layer.
Shares CakeShares(const oracle_prompt& p, const oracle_sizes& s) {
  Row preferences;
  for (uint32_t l = 0; l < p.n_layers; ++l) {
    preferences.push_back(Preference(p, l, s.window));
  }
  Shares out = {std::vector<uint64_t>(p.n_layers), false};
  out.in_doubt = oracle_split_cake(preferences.data(), p.n_layers,
                                   uint64_t{Tokens(s) - s.window} * p.n_layers,
                                   p.n_tokens - s.window, out.n.data()) < 1e-5;
  return out;
}

}  // namespace

Heads Cake(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  const Shares shares = CakeShares(p, s);
  const auto n = static_cast<uint32_t>(shares.n[layer]) + s.window;
  const uint32_t off = shares.in_doubt ? 1 : 0;
  const uint32_t n_past = p.n_tokens - s.window;
  return OfEach(p, [&](uint32_t h) {
    const Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      return AveragePool(CakeRow(Attention(p, layer, q, s.window), n_past),
                         n_past, 5);
    }));
    // Variances are differences of f32 numbers.
    const double largest = *std::max_element(row.begin(), row.end());
    return Best(WithWindow(row, p.n_tokens), n - off,
                std::min(n + off, p.n_tokens), 1e-5 * largest);
  });
}

// The last query's weights, mean over the heads, without the last column: a layer
// is lazy if the first 4 and the last n_recent of them exceed the threshold.
Heads SimLayerKv(const oracle_prompt& p, const oracle_sizes& s,
                 uint32_t layer) {
  const uint32_t n_recent = s.window;
  if (p.n_tokens < 4 + n_recent + 1) return AllOf(p);
  Rows rows;
  for (uint32_t q = 0; q < p.n_q_heads; ++q) {
    rows.push_back(Attention(p, layer, q, 1)[0]);
  }
  Row row = MeanOfRows(rows);
  row.pop_back();
  double sum = 0.0;
  for (size_t j = 0; j < row.size(); ++j) {
    if (j < 4 || row.size() - j <= n_recent) sum += row[j];
  }
  if (sum <= s.budget) return AllOf(p);
  Row places(p.n_tokens, 0.0);
  const uint32_t n = 4 + n_recent - 1;
  std::fill_n(places.begin(), 4, 1.0);
  std::fill(places.end() - (n_recent - 1), places.end(), 1.0);
  return Heads(p.n_kv_heads, Best(places, n, 0.0));
}

}  // namespace kvevict::oracle
