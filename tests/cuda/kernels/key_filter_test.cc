// Keys against a direction in any layout, against double precision.
#include "cuda/kernels/key_filter.cu"

#include <cmath>
#include <limits>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

void CheckHead(const PlaneShape& c, const CacheLayer& layer, uint32_t head,
               uint32_t n_tokens, const float* filter, uint32_t turn) {
  std::vector<double> expected(n_tokens), bounds(n_tokens);
  oracle_key_filter(layer.Row(c, head, 0), n_tokens, c.head_dim, filter,
                    expected.data(), bounds.data());
  for (uint32_t t = 0; t < layer.n_tokens; ++t) {
    const double score = layer.scores[size_t{head} * layer.n_tokens + t];
    if (t >= n_tokens) {
      if (score != 77.0) Fail("case %u: score %u is %g", turn, t, score);
    } else if (std::isnan(expected[t])) {
      if (!std::isnan(score)) Fail("case %u: score %u is %g", turn, t, score);
    } else if (score != expected[t] &&
               !(std::abs(score - expected[t]) <= bounds[t])) {
      Fail("case %u, dim %u, token %u of %u: %.9g, not %.9g to %.3g", turn,
           c.head_dim, t, n_tokens, score, expected[t], bounds[t]);
    }
  }
}

void Check(const PlaneShape& c, bool has_counts, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 3;
  std::vector<float> odd;
  if (turn % 4 == 0) {
    odd = {std::numeric_limits<float>::quiet_NaN(),
           std::numeric_limits<float>::infinity()};
  }
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(c.n_most), random);
  }
  // Some begin or end between multiples of 16 bytes.
  const uint32_t begin = random.Below(5);
  const uint32_t head_stride = c.head_dim + random.Below(3);
  std::vector<CacheLayer> layers;
  std::vector<std::vector<float>> filters;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeCacheLayer(c, tokens, l, odd, random));
    filters.emplace_back(begin + (c.n_heads - 1) * head_stride + c.head_dim);
    for (float& v : filters.back()) v = random.Gaussian();
  }
  cuda::KeyFilterParams p = {};
  p.keys = c.cache_rows();
  p.tokens = tokens.table();
  p.filter_head_stride = head_stride;
  p.n_kv_heads = c.n_heads;
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(filters[l].data() + begin),
                   Address(layers[l].scores.data()),
                   layers[l].n_tokens,
                   tokens.FirstOf(l)};
  }
  const uint32_t rows = cuda::KeyFilterBlockRows(p.keys.lanes);
  Run(cuda::filter_keys, {(c.n_most + rows - 1) / rows, c.n_heads, n_layers},
      cuda::kFilterThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      CheckHead(c, layers[l], h, tokens.Of(l, h),
                filters[l].data() + begin + h * head_stride, turn);
    }
  }
}

void TestFilter() {
  Random random(TestSeed("key_filter"));
  for (uint32_t turn = 0; turn < 66; ++turn) {
    const PlaneShape c = PlaneOfTurn(turn, 150, random);
    Check(c, random.Below(2) == 0, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestFilter(); }
