// Scores raised to their mean, with the CPU's bits.
#include "cuda/kernels/raise_to_mean.cu"

#include "core/kernels/raise_to_mean.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

void Check(uint32_t turn, Random& random) {
  constexpr uint32_t kLengths[] = {1, 2, 255, 256, 257, 600, 1025};
  const uint32_t n_heads = 1 + random.Below(3);
  const uint32_t n_layers = 1 + turn % 3;
  const uint32_t n_unpooled = random.Below(2);
  ListTable tokens(n_heads, random.Below(2) == 0, 2);
  std::vector<uint32_t> n_tokens;
  std::vector<std::vector<float>> layers(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    n_tokens.push_back(kLengths[random.Below(std::size(kLengths))]);
    tokens.AddLayer(1, n_tokens[l], random);
    for (uint32_t i = 0; i < n_heads * n_tokens[l]; ++i) {
      layers[l].push_back(random.Gaussian());
    }
    if (random.Below(4) == 0) {
      layers[l][0] = kInfinity;
    }
  }
  std::vector<std::vector<float>> expected = layers;
  cuda::RaiseParams p = {};
  p.n_unpooled = n_unpooled;
  p.tokens = tokens.table();
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].data()), n_tokens[l], tokens.FirstOf(l)};
    for (uint32_t h = 0; h < n_heads; ++h) {
      RaiseToMean(SimdTargetAt(0), expected[l].data() + h * n_tokens[l],
                  tokens.Of(l, h) - n_unpooled);
    }
  }
  Run(cuda::raise_to_mean, {n_heads, n_layers}, cuda::kRaiseThreads, p,
      Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    ExpectSame(layers[l], expected[l], "raise_to_mean", turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("raise_to_mean"));
  for (uint32_t turn = 0; turn < 24; ++turn) {
    kvevict::Check(turn, random);
  }
}
