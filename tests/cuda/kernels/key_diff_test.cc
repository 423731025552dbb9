// Keys against their mean direction in any layout, against double precision.
#include "cuda/kernels/key_diff.cu"

#include <cmath>
#include <limits>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void Launch(const cuda::KeyDiffParams& p, uint32_t n_tokens, uint32_t n_layers,
            uint32_t turn) {
  Run(cuda::key_sums, {p.n_chunks, p.n_kv_heads, n_layers}, cuda::kDiffThreads,
      p, Schedule(turn));
  if (p.n_chunks > 1) {
    const uint32_t columns =
        (p.keys.head_dim + cuda::kDiffColumns - 1) / cuda::kDiffColumns;
    Run(cuda::add_key_sums, {columns, p.n_kv_heads, n_layers},
        cuda::kDiffThreads, p, Schedule(turn));
  }
  const uint32_t rows = cuda::KeyDiffBlockRows(p.keys.lanes);
  Run(cuda::key_diffs, {(n_tokens + rows - 1) / rows, p.n_kv_heads, n_layers},
      cuda::kDiffThreads, p, Schedule(turn));
}

// Keys that are not finite add nothing to the mean, and score NaN.
void CheckHead(const PlaneShape& c, const CacheLayer& layer, uint32_t head,
               uint32_t n_tokens, uint32_t turn) {
  std::vector<float> good;
  std::vector<bool> is_good(n_tokens);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const float* key = layer.Row(c, head, t);
    is_good[t] = std::all_of(key, key + c.head_dim,
                             [](float v) { return std::isfinite(v); });
    if (is_good[t]) good.insert(good.end(), key, key + c.head_dim);
  }
  const auto n_good = static_cast<uint32_t>(good.size() / c.head_dim);
  std::vector<double> expected(n_good), bounds(n_good);
  oracle_key_diff(good.data(), n_good, c.head_dim, expected.data(),
                  bounds.data());
  for (uint32_t t = 0, i = 0; t < layer.n_tokens; ++t) {
    const double score = layer.scores[size_t{head} * layer.n_tokens + t];
    if (t >= n_tokens) {
      if (score != 77.0) Fail("case %u: score %u is %g", turn, t, score);
    } else if (!is_good[t]) {
      if (!std::isnan(score)) Fail("case %u: score %u is %g", turn, t, score);
    } else {
      if (!(std::abs(score - expected[i]) <= bounds[i])) {
        Fail("case %u, dim %u, token %u of %u: %.9g, not %.9g to %.3g", turn,
             c.head_dim, t, n_tokens, score, expected[i], bounds[i]);
      }
      ++i;
    }
  }
}

void Check(const PlaneShape& c, bool has_counts, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 3;
  uint32_t n_longest = 0;
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t most = 1 + random.Below(c.n_most);
    tokens.AddLayer(1, most, random);
    n_longest = std::max(n_longest, most);
  }
  std::vector<float> odd;
  if (turn % 4 == 0) odd = {kNan, kInfinity, -kInfinity};
  std::vector<CacheLayer> layers;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeCacheLayer(c, tokens, l, odd, random));
  }
  cuda::KeyDiffParams p = {};
  p.keys = c.cache_rows();
  p.tokens = tokens.table();
  p.n_kv_heads = c.n_heads;
  p.n_chunks = cuda::KeyDiffChunks(n_longest);
  std::vector<float> sums(
      size_t{n_layers} * c.n_heads * p.n_chunks * c.head_dim, kNan);
  p.sums = Address(sums.data());
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(layers[l].scores.data()), layers[l].n_tokens,
                   tokens.FirstOf(l)};
  }
  Launch(p, n_longest, n_layers, turn);
  for (size_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      CheckHead(c, layers[l], h, tokens.Of(l, h), turn);
    }
  }
}

void TestDiffs() {
  Random random(TestSeed("key_diff"));
  for (uint32_t turn = 0; turn < 66; ++turn) {
    // There is one chunk, or up to more than there are slices.
    const uint32_t n_most = turn % 22 == 0 ? 2600 : turn % 3 == 0 ? 600 : 100;
    const PlaneShape c = PlaneOfTurn(turn, n_most, random);
    Check(c, random.Below(2) == 0, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestDiffs(); }
