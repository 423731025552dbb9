// Norms of rows in any layout, as scores and as weights of scores, against double
// precision.
#include "cuda/kernels/row_norm.cu"

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
  p.weighs = weighs;
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

void TestNorms() {
  Random random(TestSeed("row_norm"));
  for (uint32_t turn = 0; turn < Turns(99); ++turn) {
    const PlaneShape c = PlaneOfTurn(turn, kMost, random);
    Check(c, random.Below(2) == 0, random.Below(2) == 0, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestNorms(); }
