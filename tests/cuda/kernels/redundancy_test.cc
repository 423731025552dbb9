// Scores less the redundancy of their keys in any layout, bit for bit as in
// core/kernels.
#include "cuda/kernels/redundancy.cu"

#include <cmath>

#include "core/kernels/redundancy.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/cuda/kernels/near_keys.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

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
Wanted ScoresOf(const cuda::RedundancyParams& p, const float* rows,
                uint32_t dim, std::vector<float> scores) {
  RowSource keys;
  keys.base = reinterpret_cast<const uint8_t*>(rows);
  keys.row_stride = static_cast<int64_t>(dim * sizeof(float));
  keys.element_stride = sizeof(float);
  const auto n = static_cast<uint32_t>(scores.size());
  std::vector<uint64_t> scratch(RedundancyScratchBytes(n, dim) / 8 + 1);
  SubtractRedundancy(
      SimdTargetAt(0),
      {keys, n, dim, p.threshold, p.score_weight, p.weight, scores.data(),
       reinterpret_cast<uint8_t*>(scratch.data())});
  Wanted wanted;
  wanted.values.assign(scores.begin(), scores.end());
  return wanted;
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

void Check(const PlaneShape& s, bool is_near, Random& random, uint32_t turn) {
  CacheLaunch c(s, 1 + turn % 2, 1, random);
  c.Draw(turn, random, false,
         is_near ? MakeNear(s, random) : ChangeRow(nullptr));
  std::vector<std::vector<float>> before;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    std::vector<float>& scores = c.layers[l].scores;
    for (uint32_t i = 0; i < scores.size(); ++i) {
      const uint32_t n = c.layers[l].n_tokens;
      if (i % n >= c.tokens.Of(l, i / n)) continue;
      scores[i] = random.Below(20) == 0 ? kInfinity : random.Gaussian();
    }
    before.push_back(scores);
  }
  auto p = c.Lend<cuda::RedundancyParams>();
  p.stride = c.n_longest();
  p.n_chunks = cuda::RedundancyChunks(p.stride);
  // Many, most, some and hardly any keys are similar.
  constexpr float kThresholds[] = {0.0f, 0.5f, 0.8f, 0.999f};
  p.threshold = kThresholds[random.Below(4)];
  if (is_near) {
    const float at = ThresholdAt(s, c.layers[0], c.tokens.Of(0, 0), random);
    if (at >= 0.0f) p.threshold = at;
  }
  p.score_weight = 0.1f;
  p.weight = 0.9f;
  std::vector<float> sums(size_t{c.n_all_heads()} * p.n_chunks * s.head_dim,
                          kNan);
  std::vector<float> rows(size_t{c.n_all_heads()} * 3 * p.stride, kNan);
  p.sums = Address(sums.data());
  p.rows = Address(rows.data());
  Launch(p, p.stride, c.n_layers(), turn);
  c.Compare(turn, [&](size_t l, uint32_t head, uint32_t n) {
    const auto first = before[l].begin() + head * c.layers[l].n_tokens;
    return ScoresOf(p, c.layers[l].Row(s, head, 0), s.head_dim,
                    {first, first + n});
  });
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
    Check(PlaneForNear(turn, n_most, is_near, random), is_near, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestRedundancy(); }
