// Blocks that stay beside the best, as the CPU chooses them.
#include "cuda/kernels/rescue.cu"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/signals/signals.h"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {
namespace {

struct Case {
  uint32_t block;
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t n_rescued;
  uint32_t anchor;
  uint32_t n_lists;
  bool in_place;  // marks are the scores
};

constexpr Case kCases[] = {
    {2, 0, 0, 1, cuda::kAnchorMean, 2, true},
    {8, 8, 16, 3, cuda::kAnchorZeros, 1, false},
    {8, 5, 11, 2, cuda::kAnchorOnes, 2, true},
    {32, 32, 64, 4, cuda::kAnchorAlternating, 1, false},
    {40, 0, 1, 5, cuda::kAnchorRandom, 2, false},
    {3, 3, 0, 70, cuda::kAnchorMean, 1, true},
};

// Scores are neighbours of 1: the last bit of keys decides, and many are equal.
constexpr uint32_t kOneBits = 0x3F800000u;

struct Layer {
  uint32_t n_tokens;
  uint32_t n_blocks;  // 0: left alone
  std::vector<float> marks;
  std::vector<float> scores;
  std::vector<int32_t> keep;
  std::vector<uint32_t> scratch;
};

// Computes a list's new keys in the simplest way.
void Expect(const Case& c, const cuda::RescueParams& p, const Layer& layer,
            uint32_t number, uint32_t n_seen, const float* marks,
            const int32_t* keep, uint32_t n_keep, std::vector<float>* scores) {
  const uint32_t begin = (c.n_sink + c.block - 1) / c.block * c.block;
  const uint32_t end = (layer.n_tokens - std::min(c.n_recent, layer.n_tokens)) /
                       c.block * c.block;
  if (layer.n_blocks == 0 || begin >= end) return;
  const uint32_t n = end - begin;
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](uint32_t i) {
    return std::isnan(marks[begin + i]) ? -kInfinity : marks[begin + i];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return rank(a) > rank(b); });
  std::vector<uint32_t> marked(n, 0);
  for (uint32_t i = 0; i < n / 2; ++i) marked[order[i]] = 1;
  const uint32_t n_blocks = n / c.block;
  std::vector<uint32_t> anchor(c.block);
  for (uint32_t i = 0; i < c.block; ++i) {
    uint32_t n_marked = 0;
    for (uint32_t b = 0; b < n_blocks; ++b) n_marked += marked[b * c.block + i];
    const uint32_t bits[] = {2 * n_marked > n_blocks, 0, 1, i % 2,
                             RandomScore(p.seed, number, n_seen, i) >= 0.5f};
    anchor[i] = bits[c.anchor];
  }
  std::vector<std::pair<uint32_t, uint32_t>> go;  // distance, block
  std::vector<bool> stays(n_blocks, false);
  for (uint32_t b = 0; b < n_blocks; ++b) {
    uint32_t distance = 0;
    for (uint32_t i = 0; i < c.block; ++i) {
      distance += marked[b * c.block + i] != anchor[i];
    }
    stays[b] =
        std::find(keep, keep + n_keep,
                  static_cast<int32_t>(begin + b * c.block)) != keep + n_keep;
    if (!stays[b]) go.emplace_back(distance, b);
  }
  std::sort(go.begin(), go.end());
  const size_t step = std::max<size_t>(
      1, go.size() / std::min<size_t>(go.size(), layer.n_blocks));
  for (size_t i = 0; i < go.size() && i / step < layer.n_blocks; i += step) {
    stays[go[i].second] = true;
  }
  for (uint32_t i = 0; i < n; ++i) {
    (*scores)[begin + i] = stays[i / c.block] ? kInfinity : kNan;
  }
}

void TestRescue() {
  Random random(TestSeed("rescue/blocks"));
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    std::vector<Layer> layers;
    for (const uint32_t n_tokens : {1u, 333u, 1025u, 640u}) {
      Layer layer{n_tokens, layers.size() == 3 ? 0 : c.n_rescued, {}, {}, {},
                  {}};
      for (uint32_t i = 0; i < c.n_lists * n_tokens; ++i) {
        layer.marks.push_back(
            random.Below(30) == 0
                ? kNan
                : std::bit_cast<float>(kOneBits + random.Below(9)));
      }
      layer.scores = c.in_place ? layer.marks
                                : std::vector<float>(layer.marks.size(), 7.0f);
      layer.scratch.resize(layer.marks.size());
      layers.push_back(layer);
    }
    cuda::RescueParams p = {};
    p.seed = random.Next();
    p.n_sink = c.n_sink;
    p.n_recent = c.n_recent;
    p.block = c.block;
    p.anchor = c.anchor;
    p.keep_stride = 1100;
    std::vector<std::vector<float>> expected;
    for (uint32_t l = 0; l < layers.size(); ++l) {
      Layer& layer = layers[l];
      // Every third block and both ends stay.
      std::vector<int32_t> kept;
      for (uint32_t i = 0; i < layer.n_tokens; ++i) {
        if (i < c.n_sink || i / c.block % 3 == 1) {
          kept.push_back(static_cast<int32_t>(i));
        }
      }
      layer.keep.resize(size_t{p.keep_stride} * c.n_lists, -1);
      for (uint32_t list = 0; list < c.n_lists; ++list) {
        std::copy(kept.begin(), kept.end(),
                  layer.keep.begin() + p.keep_stride * list);
      }
      const auto n_keep = static_cast<uint32_t>(kept.size());
      p.layers[l] = {
          Address(layer.scores.data()),
          Address(c.in_place ? layer.scores.data() : layer.marks.data()),
          Address(layer.keep.data()),
          Address(layer.scratch.data()),
          layer.n_tokens,
          layer.n_tokens,
          n_keep,
          layer.n_blocks,
          l + 3,
          900 + l,
          0};
      std::vector<float> all;
      for (uint32_t list = 0; list < c.n_lists; ++list) {
        const auto first = layer.scores.begin() + list * layer.n_tokens;
        std::vector<float> scores(first, first + layer.n_tokens);
        Expect(c, p, layer, l + 3, 900 + l, &layer.marks[list * layer.n_tokens],
               kept.data(), n_keep, &scores);
        all.insert(all.end(), scores.begin(), scores.end());
      }
      expected.push_back(all);
    }
    Run(cuda::rescue_blocks, {c.n_lists, static_cast<uint32_t>(layers.size())},
        cuda::kRescueThreads, p, Schedule(turn));
    for (size_t l = 0; l < layers.size(); ++l) {
      ExpectSame(layers[l].scores, expected[l], "rescue_blocks", turn);
    }
    ++turn;
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestRescue(); }
