// Presets that find budgets of layers from their attention.
#include <algorithm>
#include <cmath>

#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
namespace {

// The unbiased variance of one token over the rows.
double VarianceOf(const Rows& rows, uint32_t token) {
  double mean = 0.0;
  for (const Row& row : rows) mean += row[token] / rows.size();
  double sum = 0.0;
  for (const Row& row : rows) sum += (row[token] - mean) * (row[token] - mean);
  return sum / (rows.size() - 1);
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

// Each layer's part of (cap - window) tokens per layer, rounded down, at most the past.
// The excess goes to layers that have less, and what rounding took from the first layer
// on.
Shares CakeShares(const oracle_prompt& p, const oracle_sizes& s) {
  const uint64_t total = uint64_t{Tokens(s) - s.window} * p.n_layers;
  const uint64_t n_past = p.n_tokens - s.window;
  std::vector<double> preferences;
  double sum = 0.0;
  for (uint32_t l = 0; l < p.n_layers; ++l) {
    preferences.push_back(Preference(p, l, s.window));
    sum += preferences.back();
  }
  Shares out = {{}, false};
  uint64_t given = 0;
  for (const double preference : preferences) {
    const double share = preference / sum * static_cast<double>(total);
    out.in_doubt |= std::abs(share - std::round(share)) < 1e-5 * total;
    out.n.push_back(std::min(static_cast<uint64_t>(share), n_past));
    given += static_cast<uint64_t>(share);
  }
  const auto hand_out = [&](uint64_t n) {
    std::vector<uint64_t*> open;
    for (uint64_t& share : out.n) {
      if (share < n_past) open.push_back(&share);
    }
    for (size_t i = 0; i < open.size(); ++i) {
      *open[i] += n / open.size() + (i < n % open.size() ? 1 : 0);
    }
  };
  uint64_t held = 0;
  for (const uint64_t share : out.n) held += share;
  if (given > held) hand_out(given - held);
  if (total > given) hand_out(total - given);
  for (uint64_t& share : out.n) share = std::min(share, n_past);
  return out;
}

}  // namespace

Heads Cake(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  const Shares shares = CakeShares(p, s);
  const auto n = static_cast<uint32_t>(shares.n[layer]) + s.window;
  const uint32_t off = shares.in_doubt ? 1 : 0;
  const uint32_t n_past = p.n_tokens - s.window;
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    const Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      return AveragePool(CakeRow(Attention(p, layer, q, s.window), n_past),
                         n_past, 5);
    }));
    // Variances are differences of f32 numbers.
    const double largest = *std::max_element(row.begin(), row.end());
    heads.push_back(Best(WithWindow(row, p.n_tokens), n - off,
                         std::min(n + off, p.n_tokens), 1e-5 * largest));
  }
  return heads;
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
