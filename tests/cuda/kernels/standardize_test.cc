// Standardised scores, and leverage that is added, against double precision.
#include "cuda/kernels/standardize.cu"

#include <cmath>

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Moments {
  double mean;
  double deviation;
};

Moments MomentsOf(const std::vector<float>& scores) {
  double sum = 0.0;
  for (float v : scores) sum += v;
  const auto n = static_cast<double>(scores.size());
  const double mean = sum / n;
  double squares = 0.0;
  for (float v : scores) squares += (v - mean) * (v - mean);
  return {mean, std::max(n > 1 ? std::sqrt(squares / (n - 1.0)) : 0.0, 1e-6)};
}

void Check(uint32_t turn, Random& random) {
  constexpr uint32_t kLengths[] = {1, 2, 255, 256, 257, 600, 1025};
  const uint32_t n_heads = 1 + random.Below(3);
  const uint32_t n_layers = 1 + turn % 3;
  const bool adds = turn % 2 == 1;
  ListTable tokens(n_heads, random.Below(2) == 0, 2);
  std::vector<uint32_t> n_tokens;
  std::vector<std::vector<float>> scores(n_layers), leverage(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    n_tokens.push_back(kLengths[random.Below(std::size(kLengths))]);
    tokens.AddLayer(1, n_tokens[l], random);
    for (uint32_t i = 0; i < n_heads * n_tokens[l]; ++i) {
      scores[l].push_back(random.Gaussian() + 5.0f);
      leverage[l].push_back(random.Gaussian());
    }
    scores[l][scores[l].size() / 2] = kInfinity;
    leverage[l][0] = kNan;
  }
  std::vector<std::vector<float>> got = scores;
  cuda::StandardizeParams p = {};
  p.tokens = tokens.table();
  p.n_kv_heads = n_heads;
  const uint32_t n_sink = random.Below(3);
  const uint32_t n_recent = random.Below(3);
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(got[l].data()),
                   adds ? Address(leverage[l].data()) : 0,
                   n_tokens[l],
                   tokens.FirstOf(l),
                   n_sink,
                   n_recent,
                   0.75f,
                   0};
  }
  Run(cuda::standardize, {n_layers}, cuda::kStandardizeThreads, p,
      Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    const std::vector<float>& from = adds ? leverage[l] : scores[l];
    std::vector<float> counted;
    const auto visit = [&](const auto& use) {
      for (uint32_t h = 0; h < n_heads; ++h) {
        const uint32_t n = tokens.Of(l, h);
        for (uint32_t t = 0; t < n_tokens[l]; ++t) {
          const bool between = t >= n_sink && t + n_recent < n;
          use(size_t{h} * n_tokens[l] + t, t < n, between);
        }
      }
    };
    visit([&](size_t i, bool, bool between) {
      if (between && std::isfinite(from[i])) counted.push_back(from[i]);
    });
    if (counted.empty()) continue;
    const Moments m = MomentsOf(counted);
    visit([&](size_t i, bool is_held, bool between) {
      const double z = (from[i] - m.mean) / m.deviation;
      double want = scores[l][i];
      if (adds && between) want += 0.75 * z;
      if (!adds && is_held && std::isfinite(want)) want = z;
      // A score of up to ten, and a deviation of 1 or of nothing at all.
      const double bound = 1e-5 / std::min(1.0, m.deviation);
      const double v = got[l][i];
      if (std::isnan(want) ? std::isnan(v)
                           : v == want || std::abs(v - want) <= bound) {
        return;
      }
      Fail("case %u, layer %u, score %zu: %.9g, not %.9g", turn, l, i, v, want);
    });
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("standardize"));
  for (uint32_t turn = 0; turn < 24; ++turn) {
    kvevict::Check(turn, random);
  }
}
