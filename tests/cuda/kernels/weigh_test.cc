// Scores by the caller's weights have the CPU's bits.
#include "cuda/kernels/weigh.cu"

#include "core/kernels/weigh.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Layer {
  std::vector<float> scores;
  std::vector<float> weights;
};

float DrawScore(Random& random) {
  if (random.Below(8) > 0) return random.Gaussian();
  return random.Below(2) == 0 ? kInfinity : -kInfinity;
}

void Check(bool has_counts, uint32_t turn, Random& random) {
  constexpr uint32_t kLengths[] = {1, 255, 256, 257, 600};
  const uint32_t n_heads = 1 + random.Below(3);
  const uint32_t head_stride = 600 + random.Below(5);
  const float epsilon = random.Below(2) == 0 ? 0.0f : 0.01f;
  const uint32_t n_layers = 1 + turn % 3;
  ListTable tokens(n_heads, has_counts, 2);
  std::vector<uint32_t> n_tokens;
  std::vector<Layer> layers(n_layers);
  cuda::WeighParams p = {};
  for (uint32_t l = 0; l < n_layers; ++l) {
    n_tokens.push_back(kLengths[random.Below(std::size(kLengths))]);
    tokens.AddLayer(0, n_tokens[l], random);
    for (uint32_t i = 0; i < n_heads * n_tokens[l]; ++i) {
      layers[l].scores.push_back(DrawScore(random));
    }
    for (uint32_t i = 0; i < n_heads * head_stride; ++i) {
      layers[l].weights.push_back(random.Gaussian());
    }
  }
  std::vector<Layer> expected = layers;
  p.weight_head_stride = head_stride;
  p.tokens = tokens.table();
  p.n_kv_heads = n_heads;
  p.epsilon = epsilon;
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].scores.data()),
                   Address(layers[l].weights.data()), n_tokens[l],
                   tokens.FirstOf(l)};
    for (uint32_t h = 0; h < n_heads; ++h) {
      WeighScores(SimdTargetAt(0), &expected[l].weights[h * head_stride],
                  tokens.Of(l, h), epsilon,
                  expected[l].scores.data() + h * n_tokens[l]);
    }
  }
  Run(cuda::weigh_scores, {3, n_heads, n_layers}, cuda::kWeighThreads, p,
      Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    ExpectSame(layers[l].scores, expected[l].scores, "weigh_scores", turn);
  }
}

void TestWeights() {
  Random random(TestSeed("weigh"));
  for (uint32_t turn = 0; turn < 24; ++turn) {
    Check(random.Below(2) == 0, turn, random);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestWeights(); }
