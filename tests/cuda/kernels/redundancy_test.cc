// Scores less the redundancy of their keys in any layout, bit for bit as in
// core/kernels.
#include "cuda/kernels/redundancy.cu"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/redundancy.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/cuda/kernels/near_keys.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void Launch(const cuda::RedundancyParams& p, uint32_t n_tokens,
            uint32_t n_layers, uint32_t turn) {
  const auto run = [&](const auto& kernel, uint32_t grid_x) {
    Run(kernel, {grid_x, p.n_kv_heads, n_layers}, cuda::kRedundancyThreads, p,
        Schedule(turn));
  };
  run(cuda::redundancy_directions, p.n_chunks);
  if (p.n_chunks > 1) {
    run(cuda::redundancy_sums,
        (p.keys.head_dim + cuda::kRedundancyThreads - 1) /
            cuda::kRedundancyThreads);
  }
  // In parts, as launches with many products are.
  const auto run_parts = [&](const auto& kernel, uint32_t n) {
    cuda::RedundancyParams part = p;
    for (; part.first_tile < n; ++part.first_tile) {
      const bool is_rest = part.first_tile == 1;
      Run(kernel, {is_rest ? n - 1 : 1, p.n_kv_heads, n_layers},
          cuda::kRedundancyThreads, part, Schedule(turn));
      if (is_rest) return;
    }
  };
  run_parts(cuda::redundancy_search,
            (n_tokens + cuda::kCosineTile - 1) / cuda::kCosineTile);
  run_parts(cuda::redundancy_columns, p.n_chunks);
  Run(cuda::redundancy_mix, {p.n_kv_heads, n_layers, 1},
      cuda::kRedundancyThreads, p, Schedule(turn));
}

// The CPU's result for the scores of a head.
std::vector<float> Expected(const PlaneShape& c,
                            const cuda::RedundancyParams& p,
                            const CacheLayer& layer, uint32_t head,
                            uint32_t n_tokens, std::vector<float> scores) {
  RowSource keys;
  keys.base = reinterpret_cast<const uint8_t*>(layer.Row(c, head, 0));
  keys.row_stride = static_cast<int64_t>(c.head_dim * sizeof(float));
  keys.element_stride = sizeof(float);
  std::vector<uint64_t> scratch(
      RedundancyScratchBytes(n_tokens, c.head_dim) / 8 + 1);
  SubtractRedundancy(
      SimdTargetAt(0),
      {keys, n_tokens, c.head_dim, p.threshold, p.score_weight, p.weight,
       scores.data(), reinterpret_cast<uint8_t*>(scratch.data())});
  return scores;
}

void CheckHead(const PlaneShape& c, const cuda::RedundancyParams& p,
               const CacheLayer& layer, const std::vector<float>& before,
               uint32_t head, uint32_t n_tokens, uint32_t turn) {
  const size_t first = size_t{head} * layer.n_tokens;
  const auto from = before.begin() + static_cast<int64_t>(first);
  const std::vector<float> expected =
      Expected(c, p, layer, head, n_tokens, {from, from + n_tokens});
  for (uint32_t t = 0; t < layer.n_tokens; ++t) {
    const float score = layer.scores[first + t];
    if (t >= n_tokens) {
      if (score != 77.0f) Fail("case %u: score %u is %g", turn, t, score);
    } else if (std::isnan(expected[t])) {
      if (!std::isnan(score)) Fail("case %u: score %u is %g", turn, t, score);
    } else if (std::memcmp(&score, &expected[t], sizeof(score)) != 0) {
      Fail("case %u, dim %u, token %u of %u: %.9g, not %.9g", turn, c.head_dim,
           t, n_tokens, score, expected[t]);
    }
  }
}

// The greatest cosine of a row with a later key.
float MostOfRow(const PlaneShape& c, const CacheLayer& layer, uint32_t row,
                uint32_t n_tokens) {
  float most = -1.0f;
  for (uint32_t t = row + 1; t < n_tokens; ++t) {
    most = std::max(
        most, CosineOfRows(layer.Row(c, 0, row), layer.Row(c, 0, t), c.head_dim,
                           [](float norm) { return 1.0f / (norm + 1e-8f); }));
  }
  return most;
}

// A threshold at which the filter must be right: at the greatest cosine of a row of
// head 0 or next to it, or as far from it as the filter may be wrong. Negative if
// there is none. High ones are off by more.
float ThresholdAt(const PlaneShape& c, const CacheLayer& layer,
                  uint32_t n_tokens, Random& random) {
  if (n_tokens < 2) return -1.0f;
  float most = -1.0f;
  for (uint32_t n = random.Below(2) == 0 ? 1 : 10; n > 0; --n) {
    const uint32_t row = random.Below(n_tokens - 1);
    most = std::max(most, MostOfRow(c, layer, row, n_tokens));
  }
  const float error = cuda::CosineError(c.head_dim);
  switch (random.Below(6)) {
    case 0:
      return most;
    case 1:
      return std::nextafter(most, 2.0f);
    case 2:
      return most - error;
    case 3:
      return most + error;
    default:
      return std::nextafter(most, -2.0f);
  }
}

void Check(const PlaneShape& c, bool has_counts, bool is_near, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 2;
  uint32_t n_longest = 0;
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t most = 1 + random.Below(c.n_most);
    tokens.AddLayer(1, most, random);
    n_longest = std::max(n_longest, most);
  }
  std::vector<float> odd;
  if (turn % 4 == 0) odd = {kNan, kInfinity, -kInfinity};
  std::vector<CacheLayer> layers;
  std::vector<std::vector<float>> before;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(
        MakeCacheLayer(c, tokens, l, odd, random, false, nullptr,
                       is_near ? MakeNear(c, random) : ChangeRow(nullptr)));
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      for (uint32_t t = 0; t < tokens.Of(l, h); ++t) {
        layers[l].scores[size_t{h} * layers[l].n_tokens + t] =
            random.Below(20) == 0 ? kInfinity : random.Gaussian();
      }
    }
    before.push_back(layers[l].scores);
  }
  cuda::RedundancyParams p = {};
  p.keys = c.cache_rows();
  p.tokens = tokens.table();
  p.n_kv_heads = c.n_heads;
  p.n_chunks = cuda::RedundancyChunks(n_longest);
  p.stride = n_longest;
  // Many, most, some and hardly any keys are similar.
  constexpr float kThresholds[] = {0.0f, 0.5f, 0.8f, 0.999f};
  p.threshold = kThresholds[random.Below(4)];
  if (is_near) {
    const float at = ThresholdAt(c, layers[0], tokens.Of(0, 0), random);
    if (at >= 0.0f) p.threshold = at;
  }
  p.score_weight = 0.1f;
  p.weight = 0.9f;
  std::vector<float> sums(
      size_t{n_layers} * c.n_heads * p.n_chunks * c.head_dim, kNan);
  std::vector<float> rows(size_t{n_layers} * c.n_heads * 3 * p.stride, kNan);
  p.sums = Address(sums.data());
  p.rows = Address(rows.data());
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(layers[l].scores.data()), layers[l].n_tokens,
                   tokens.FirstOf(l)};
  }
  Launch(p, n_longest, n_layers, turn);
  for (size_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      CheckHead(c, p, layers[l], before[l], h, tokens.Of(l, h), turn);
    }
  }
}

void TestRedundancy() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("redundancy"));
  for (uint32_t turn = 0; turn < 96; ++turn) {
    // There is one tile or chunk, or several.
    const uint32_t n_most = turn % 6 == 0          ? 600
                            : random.Below(3) == 0 ? 250
                                                   : 50;
    const bool is_near = turn % 2 == 1;
    Check(PlaneForNear(turn, n_most, is_near, random), random.Below(2) == 0,
          is_near, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestRedundancy(); }
