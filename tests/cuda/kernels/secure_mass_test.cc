// Tokens secured by their mass, against sorting.
#include "cuda/kernels/secure_mass.cu"

#include <algorithm>
#include <numeric>

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Layer {
  std::vector<float> masses;
  std::vector<float> scores;
  double share;
};

// In the units of the kernel, in the order of masses, of equal ones the earlier first.
std::vector<uint32_t> Secured(const float* masses, uint32_t n, float share,
                              double of_context, uint32_t window) {
  float sums[256] = {};
  for (uint32_t i = 0; i < n; ++i) sums[i % 256] += masses[i];
  for (uint32_t half = 128; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  const float factor = 0x1p31f / sums[0];
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return masses[a] > masses[b];
  });
  const auto target = static_cast<uint64_t>(share * 0x1p31f);
  uint64_t sum = 0;
  uint32_t count = 0;
  for (; count < n; ++count) {
    const float units = masses[order[count]] * factor;
    sum += static_cast<uint64_t>(units);
    if (sum >= target) break;
  }
  const auto even = static_cast<uint32_t>(n * of_context);
  count = std::min(count, even > window ? even - window : 0);
  order.resize(share > 0.0f ? count : 0);
  return order;
}

void Check(uint32_t turn, Random& random) {
  const uint32_t n_heads = 1 + random.Below(4);
  const uint32_t n_layers = 1 + random.Below(3);
  const uint32_t window = 1 + random.Below(6);
  const uint32_t n_most = window + 1 + random.Below(turn % 4 == 0 ? 900 : 80);
  ListTable tokens(n_heads, random.Below(2) == 0, 2);
  std::vector<uint32_t> n_tokens;
  std::vector<Layer> layers(n_layers);
  for (uint32_t l = 0; l < n_layers; ++l) {
    n_tokens.push_back(window + 1 + random.Below(n_most - window));
    tokens.AddLayer(window + 1, n_tokens[l], random);
    layers[l].share = 0.1 * random.Below(11);
    for (uint32_t i = 0; i < n_heads * n_tokens[l]; ++i) {
      // Few different ones make ties, and some turns' keys differ in the last
      // digits alone.
      const float mass =
          turn % 3 == 0 ? static_cast<float>(random.Below(4)) / 16.0f
          : turn % 3 == 1
              ? 1.3f + static_cast<float>(random.Below(2000)) * 0x1p-23f
              : std::exp(2.0f * random.Gaussian());
      layers[l].masses.push_back(mass);
      layers[l].scores.push_back(random.Gaussian());
    }
    layers[l].masses[0] = 0.5f;  // no head's are all 0
    for (uint32_t h = 1; h < n_heads; ++h) {
      layers[l].masses[h * n_tokens[l]] = 0.25f;
    }
  }
  std::vector<float> shared(2 * size_t{n_layers}, -1.0f);
  cuda::SecureParams p = {};
  p.lists.tokens = tokens.table();
  p.lists.n_lists = n_heads;
  p.lists.n_recent = window;
  p.input = cuda::kSelectScores;
  p.mass = 0.1f + 0.1f * static_cast<float>(random.Below(10));
  p.has_bias = random.Below(2);
  p.shared = Address(shared.data());
  std::vector<std::vector<float>> expected;
  std::vector<float> expected_shared;
  for (uint32_t l = 0; l < n_layers; ++l) {
    const Layer& layer = layers[l];
    expected.push_back(layer.scores);
    float highest = -1e30f;
    float bias = 0.0f;
    for (uint32_t h = 0; h < n_heads; ++h) {
      const uint32_t n = tokens.Of(l, h) - window;
      for (uint32_t i = 0; i < n; ++i) {
        highest = std::max(highest, layer.scores[h * n_tokens[l] + i]);
        if (i + window >= n) bias += layer.masses[h * n_tokens[l] + i];
      }
    }
    const float share =
        p.has_bias ? p.mass - bias / static_cast<float>(n_heads) : p.mass;
    expected_shared.insert(expected_shared.end(), {highest, share});
    for (uint32_t h = 0; h < n_heads; ++h) {
      const size_t row = size_t{h} * n_tokens[l];
      const uint32_t n = tokens.Of(l, h) - window;
      for (uint32_t i :
           Secured(&layer.masses[row], n, share, layer.share, window)) {
        expected[l][row + i] = highest;
      }
    }
    p.layers[l] = {{Address(layers[l].masses.data()), 0, n_tokens[l], 0,
                    tokens.FirstOf(l), 0},
                   Address(layers[l].scores.data()),
                   layers[l].share};
  }
  Run(cuda::secure_shared, {n_layers}, cuda::kSelectThreads, p, Schedule(turn));
  ExpectSame(shared, expected_shared, "shared", turn);
  Run(cuda::secure_mass, {n_heads, n_layers}, cuda::kSelectThreads, p,
      Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < n_heads; ++h) {
      for (uint32_t i = 0; i + window < tokens.Of(l, h); ++i) {
        const size_t at = size_t{h} * n_tokens[l] + i;
        if (layers[l].scores[at] == expected[l][at]) continue;
        Fail("case %u, layer %u, head %u, slot %u: %.9g, not %.9g", turn, l, h,
             i, double{layers[l].scores[at]}, double{expected[l][at]});
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("secure_mass"));
  for (uint32_t turn = 0; turn < 48; ++turn) {
    kvevict::Check(turn, random);
  }
}
