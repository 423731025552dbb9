// Shares of squared norms against core/kernels/cur.
#include "core/kernels/cur.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/cur.cu"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

constexpr float kUntouched = 77.0f;

struct Layer {
  uint32_t n_tokens;
  std::vector<float> keys;  // norms, then scores
  std::vector<float> values;
  std::vector<float> sums;
};

std::vector<float> RandomNorms(size_t n, bool special, Random& random) {
  constexpr float kSpecial[] = {kNan, -kInfinity, 0.0f};
  std::vector<float> norms(n);
  for (float& norm : norms) {
    norm = -std::abs(random.Gaussian()) * 30.0f;
    if (special && random.Below(10) == 0) norm = kSpecial[random.Below(3)];
  }
  return norms;
}

// Both sides sum over the window and all tokens in orders of their own.
bool AreClose(float a, float b, uint32_t n_tokens) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::abs(a - b) <= (n_tokens + 20) * 0x1p-22f * b;
}

void Check(uint32_t turn, Random& random) {
  const uint32_t n_heads = 1 + random.Below(3);
  const uint32_t n_layers = 1 + turn % 3;
  const uint32_t most = turn % 10 == 3 ? 5000 : 400;
  ListTable tokens(n_heads, turn % 2 == 0, 2);
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(most), random);
  }
  std::vector<Layer> layers(n_layers);
  std::vector<Layer> before(n_layers);
  cuda::CurParams p = {};
  p.tokens = tokens.table();
  p.window = 2 + random.Below(turn % 4 == 0 ? 600 : 20);
  p.n_sink = random.Below(6);
  uint32_t longest = 1;
  for (size_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    for (uint32_t h = 0; h < n_heads; ++h) {
      layer.n_tokens = std::max(layer.n_tokens, tokens.Of(l, h));
    }
    longest = std::max(longest, layer.n_tokens);
    const size_t n = size_t{n_heads} * layer.n_tokens;
    layer.keys = RandomNorms(n, turn % 3 == 0, random);
    layer.values = RandomNorms(n, turn % 3 == 0, random);
    for (uint32_t h = 0; h < n_heads; ++h) {
      for (uint32_t t = tokens.Of(l, h); t < layer.n_tokens; ++t) {
        layer.keys[size_t{h} * layer.n_tokens + t] = kUntouched;
      }
    }
    layer.sums.assign(
        size_t{n_heads} * cuda::CurBlocks(layer.n_tokens, p.window), 1e9f);
    before[l] = layer;
    p.layers[l] = {Address(layer.keys.data()), Address(layer.values.data()),
                   Address(layer.sums.data()), layer.n_tokens,
                   tokens.FirstOf(l)};
  }
  Run(cuda::cur_shares, {cuda::CurBlocks(longest, p.window), n_heads, n_layers},
      cuda::kCurThreads, p, Schedule(turn));
  Run(cuda::cur_scale,
      {(longest + cuda::kCurScaleTokens - 1) / cuda::kCurScaleTokens, n_heads,
       n_layers},
      cuda::kCurScaleThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    const Layer& layer = layers[l];
    for (uint32_t h = 0; h < n_heads; ++h) {
      const size_t first = size_t{h} * layer.n_tokens;
      float* const expected = before[l].keys.data() + first;
      ComputeCurShares({tokens.Of(l, h), p.window, p.n_sink,
                        before[l].values.data() + first, expected});
      for (uint32_t t = 0; t < layer.n_tokens; ++t) {
        const float score = layer.keys[first + t];
        if (AreClose(score, expected[t], layer.n_tokens)) continue;
        Fail("case %u, layer %zu, head %u: score %u of %u is %.9g, not %.9g",
             turn, l, h, t, tokens.Of(l, h), static_cast<double>(score),
             static_cast<double>(expected[t]));
      }
    }
  }
}

void TestShares() {
  Random random(TestSeed("cur"));
  for (uint32_t turn = 0; turn < 60; ++turn) Check(turn, random);
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestShares(); }
