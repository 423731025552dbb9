// Drawn scores have the CPU's bits, whether positions are listed or not.
#include "cuda/kernels/draw.cu"

#include <algorithm>
#include <limits>

#include "core/signals/signals.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();

float DrawScore(Random& random) {
  switch (random.Below(10)) {
    case 0:
      return random.Below(2) == 0 ? kInfinity : -kInfinity;
    case 1:
      return random.Below(2) == 0 ? 0.0f : kMost;
    default:
      return random.Gaussian();
  }
}

struct Layer {
  std::vector<float> scores;
  std::vector<int32_t> kept;  // listed positions of the first slots
};

// The first slots hold every third position if they are listed, and the others
// count up.
uint32_t PositionOf(const Layer& layer, uint32_t slot) {
  const auto n_kept = static_cast<uint32_t>(layer.kept.size());
  return slot < n_kept ? 3 * slot : 3 * n_kept + slot - n_kept;
}

void Check(uint32_t turn, Random& random) {
  constexpr uint32_t kLengths[] = {1, 255, 256, 257, 600};
  const uint32_t n_heads = 1 + random.Below(3);
  const uint32_t n_layers = 1 + turn % 3;
  const uint64_t seed = turn * 0x123456789u;
  ListTable tokens(n_heads, random.Below(2) == 0, 2);
  std::vector<uint32_t> n_tokens;
  std::vector<Layer> layers(n_layers);
  cuda::DrawParams p = {};
  p.seed = seed;
  p.slot_lists = 1;
  for (uint32_t l = 0; l < n_layers; ++l) {
    n_tokens.push_back(kLengths[random.Below(std::size(kLengths))]);
    tokens.AddLayer(1, n_tokens[l], random);
    for (uint32_t i = 0; i < n_heads * n_tokens[l]; ++i) {
      layers[l].scores.push_back(DrawScore(random));
    }
    if (random.Below(2) == 0) continue;
    for (uint32_t i = 0; i < 1 + n_tokens[l] / 2; ++i) {
      layers[l].kept.push_back(static_cast<int32_t>(3 * i));
    }
  }
  p.tokens = tokens.table();
  std::vector<std::vector<float>> expected(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    const auto n_kept = static_cast<uint32_t>(layer.kept.size());
    const uint32_t given = n_tokens[l] + 7;
    const uint32_t number = 5 + l;
    p.layers[l] = {Address(layer.scores.data()),
                   {n_kept == 0 ? 0 : Address(layer.kept.data()), n_kept,
                    3 * n_kept, 0, 0},
                   n_tokens[l],
                   tokens.FirstOf(l),
                   given,
                   number};
    expected[l] = layer.scores;
    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint32_t n = tokens.Of(l, h);
      const RandomRow row(seed, number, h);
      const uint32_t n_seen =
          n_kept == 0 ? given : PositionOf(layer, n - 1) + 1;
      for (uint32_t i = 0; i < n; ++i) {
        float& score = expected[l][h * n_tokens[l] + i];
        if (!(score > 0.0f && score <= kMost)) continue;
        score = std::min(
            score / Exponential(row.Bits(n_seen, PositionOf(layer, i))), kMost);
      }
    }
  }
  Run(cuda::draw, {3, n_heads, n_layers}, cuda::kDrawThreads, p,
      Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    ExpectSame(layers[l].scores, expected[l], "draw", turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("draw"));
  for (uint32_t turn = 0; turn < 24; ++turn) {
    kvevict::Check(turn, random);
  }
}
