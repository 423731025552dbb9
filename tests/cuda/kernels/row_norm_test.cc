// Norms of rows in any layout, as scores and as weights of scores, against double
// precision.
#include "cuda/kernels/row_norm.cu"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cuda/kernels/cache_layer.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 150;
constexpr float kEpsilon = 0.25f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Expected(bool weighs, float norm, float before) {
  if (!weighs) return -norm;
  return before == kInfinity ? before : (before + kEpsilon) * norm;
}

void Check(const PlaneShape& c, bool weighs, bool has_counts, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 3;
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(kMost), random);
  }
  std::vector<CacheLayer> layers;
  std::vector<std::vector<float>> before;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeCacheLayer(c, tokens, l, {}, random));
    before.emplace_back();
    for (size_t i = 0; i < size_t{c.n_heads} * layers[l].n_tokens; ++i) {
      before[l].push_back(random.Below(9) == 0 ? kInfinity : random.Gaussian());
    }
  }
  std::vector<std::vector<float>> scores = before;
  cuda::RowNormParams p = {};
  p.rows = c.cache_rows();
  p.tokens = tokens.table();
  p.n_kv_heads = c.n_heads;
  p.use = weighs ? cuda::kNormWeighs : cuda::kNormNegated;
  p.epsilon = kEpsilon;
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()), Address(scores[l].data()),
                   layers[l].n_tokens, tokens.FirstOf(l)};
  }
  const uint32_t rows = cuda::NormBlockRows(p.rows.lanes);
  Run(cuda::row_norms, {(kMost + rows - 1) / rows, c.n_heads, n_layers},
      cuda::kNormThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    const CacheLayer& layer = layers[l];
    for (uint32_t i = 0; i < c.n_heads * layer.n_tokens; ++i) {
      const uint32_t head = i / layer.n_tokens;
      const bool is_row = i % layer.n_tokens < tokens.Of(l, head);
      double sum = 0.0;  // exact: multiples of 1/64 below 2^24
      for (uint32_t d = 0; d < c.head_dim; ++d) {
        const double v = layer.rows[size_t{i} * c.head_dim + d];
        sum += v * v;
      }
      const float norm = std::sqrt(static_cast<float>(sum));
      const float expected =
          is_row ? Expected(weighs, norm, before[l][i]) : before[l][i];
      if (scores[l][i] == expected) continue;
      Fail("case %u, layer %zu: score %u is %.9g, not %.9g", turn, l, i,
           static_cast<double>(scores[l][i]), static_cast<double>(expected));
    }
  }
}

// What a row's spread is if its sums are exact.
float Spread(const std::vector<float>& row, bool is_variance) {
  const auto [least, most] = std::minmax_element(row.begin(), row.end());
  if (!is_variance) return *most - *least;
  double sum = 0.0;
  double squares = 0.0;
  for (const double v : row) {
    sum += v;
    squares += v * v;
  }
  const auto n = static_cast<float>(row.size());
  const float mean = static_cast<float>(sum) / n;
  const float of_mean = mean * mean;
  return std::max(static_cast<float>(squares) / n - of_mean, 0.0f);
}

void CheckSpreads(const PlaneShape& c, bool is_variance, Random& random,
                  uint32_t turn) {
  ListTable tokens(c.n_heads, random.Below(2) == 0, 2);
  tokens.AddLayer(0, 1 + random.Below(kMost), random);
  const CacheLayer layer = MakeCacheLayer(c, tokens, 0, {}, random);
  std::vector<float> spreads(size_t{c.n_heads} * layer.n_tokens, -7.0f);
  cuda::RowNormParams p = {};
  p.rows = c.cache_rows();
  p.tokens = tokens.table();
  p.n_kv_heads = c.n_heads;
  p.is_variance = is_variance;
  p.layers[0] = {Address(layer.memory.data()), Address(layer.tables.data()),
                 Address(spreads.data()), layer.n_tokens, tokens.FirstOf(0)};
  const uint32_t rows = cuda::NormBlockRows(p.rows.lanes);
  Run(cuda::row_spreads, {(kMost + rows - 1) / rows, c.n_heads, 1},
      cuda::kNormThreads, p, Schedule(turn));
  for (uint32_t i = 0; i < c.n_heads * layer.n_tokens; ++i) {
    const bool is_row = i % layer.n_tokens < tokens.Of(0, i / layer.n_tokens);
    const auto begin = layer.rows.begin() + size_t{i} * c.head_dim;
    const float expected =
        is_row ? Spread({begin, begin + c.head_dim}, is_variance) : -7.0f;
    // A variance is a difference of rounded means.
    const float room = is_variance && is_row ? 0x1p-20f * (1 + expected) : 0.0f;
    if (std::abs(spreads[i] - expected) <= room) continue;
    Fail("case %u: spread %u is %.9g, not %.9g", turn, i,
         static_cast<double>(spreads[i]), static_cast<double>(expected));
  }
}

void TestNorms() {
  Random random(TestSeed("row_norm"));
  for (uint32_t turn = 0; turn < 99; ++turn) {
    const PlaneShape c = PlaneOfTurn(turn, kMost, random);
    Check(c, random.Below(2) == 0, random.Below(2) == 0, random, turn);
    CheckSpreads(c, turn % 2 == 0, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestNorms(); }
