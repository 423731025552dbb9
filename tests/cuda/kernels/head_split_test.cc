// How many keys lists keep, against core/kernels/head_split.
#include "core/kernels/head_split.h"

#include <algorithm>

#include "core/backend.h"
#include "core/kernels/topk.h"
#include "cuda/kernels/head_split.cu"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Case {
  cuda::SelectInput input;
  HeadSplit heads;
  uint32_t n_lists;
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t kind;
  uint32_t keep_stride;  // 0: the layer's most
};

struct Layer {
  uint32_t n_tokens;  // of any list, the most
  uint32_t budget;
  uint32_t most;  // the most that a list may keep
  std::vector<float> scores;
  std::vector<uint32_t> keys;
  std::vector<int32_t> keep;
  std::vector<uint32_t> tokens;  // [n_lists]
  std::vector<uint32_t> expected;
};

// Counts by the CPU's kernels.
void CountOnHost(const Case& c, Layer* layer) {
  layer->expected.assign(c.n_lists, 77);
  std::vector<uint32_t> scratch(c.n_lists);
  const HeadContest contest = {layer->keys.data(),
                               {layer->n_tokens, layer->tokens.data()},
                               c.n_lists,
                               layer->budget,
                               uint64_t{c.n_lists} * layer->budget,
                               layer->most,
                               layer->expected.data(),
                               scratch.data(),
                               1};
  const Forced forced{c.n_sink, c.n_recent, {}};
  const uint32_t n_own = c.heads.OwnOf(layer->budget, forced);
  const SimdTarget simd = SimdTargetAt(0);
  if (c.heads.kind == HeadRule::kAdaptive) {
    CountWinners(simd, contest, n_own);
  } else if (c.heads.kind == HeadRule::kAdaptiveBlend) {
    BlendWinners(simd, contest, n_own, c.heads.won_part());
  } else {
    CountPassing(simd, contest, static_cast<float>(c.heads.threshold));
  }
}

Layer MakeLayer(const Case& c, const ListTable& tokens, size_t l,
                Random& random) {
  Layer layer = {};
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    layer.tokens.push_back(tokens.Of(l, list));
    layer.n_tokens = std::max(layer.n_tokens, layer.tokens[list]);
  }
  const uint32_t least = std::max(1u, c.n_sink + c.n_recent);
  layer.budget = least + random.Below(layer.n_tokens);
  const bool competes = c.heads.kind != HeadRule::kThreshold;
  layer.most = std::min(layer.n_tokens,
                        competes ? layer.budget * c.n_lists : layer.budget);
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    const uint32_t n = layer.tokens[list];
    for (uint32_t i = 0; i < layer.n_tokens; ++i) {
      // Keys that would win lie behind a shorter list.
      layer.scores.push_back(i < n ? DrawScore(c.kind, random) : kInfinity);
    }
  }
  layer.keys.resize(layer.scores.size());
  ScoresToKeys(SimdTargetAt(0), layer.scores.data(), layer.scores.size(),
               layer.keys.data());
  for (uint32_t i = 0; i < layer.keys.size(); ++i) {
    const uint32_t n = layer.tokens[i / layer.n_tokens];
    const uint32_t slot = i % layer.n_tokens;
    if (slot < n && (slot < c.n_sink || slot + c.n_recent >= n)) {
      layer.keys[i] = kForcedKey;
    }
  }
  CountOnHost(c, &layer);
  const uint32_t stride = c.keep_stride == 0 ? layer.most : c.keep_stride;
  layer.keep.assign(size_t{c.n_lists} * stride, -1);
  return layer;
}

void Check(const Case& c, uint32_t n_layers, uint32_t n_most, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_lists, turn % 3 != 0, 2);
  for (uint32_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(1, 1 + random.Below(n_most), random);
  }
  std::vector<Layer> layers;
  for (uint32_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeLayer(c, tokens, l, random));
  }
  std::vector<uint32_t> counts(size_t{n_layers} * c.n_lists, 77);
  cuda::HeadSplitParams p = {};
  // Begins with the last layer, so that others come before it.
  p.lists = {tokens.table(),
             {Address(counts.data() + (n_layers - 1) * c.n_lists), 1, 0},
             c.keep_stride,
             c.n_lists,
             0,
             c.n_sink,
             c.n_recent,
             0,
             0,
             0};
  p.input = c.input;
  p.kind = static_cast<uint32_t>(c.heads.kind);
  p.won_part = c.heads.won_part();
  p.threshold = static_cast<float>(c.heads.threshold);
  for (uint32_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    const uint64_t words = c.input == cuda::kSelectKeys
                               ? Address(layer.keys.data())
                               : Address(layer.scores.data());
    const auto first =
        (static_cast<int32_t>(l) - static_cast<int32_t>(n_layers) + 1) *
        static_cast<int32_t>(c.n_lists);
    const Forced forced{c.n_sink, c.n_recent, {}};
    p.layers[l] = {{words, Address(layer.keep.data()), layer.n_tokens,
                    layer.most, tokens.FirstOf(l), first},
                   layer.budget,
                   c.heads.OwnOf(layer.budget, forced),
                   uint64_t{c.n_lists} * layer.budget};
  }
  Run(cuda::count_kept, {n_layers}, cuda::kSelectThreads, p, Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    const auto first = counts.begin() + size_t{l} * c.n_lists;
    ExpectSame(std::vector<uint32_t>(first, first + c.n_lists),
               layers[l].expected, "counts", turn);
  }
}

void TestCounts() {
  constexpr double kFloors[] = {0.0, 0.05, 0.2, 0.5, 1.0};
  Random random(TestSeed("head_split"));
  for (uint32_t turn = 0; turn < 90; ++turn) {
    Case c = {};
    c.input = random.Below(3) == 0 ? cuda::kSelectKeys : cuda::kSelectScores;
    c.heads.kind = static_cast<HeadRule>(1 + turn % 3);
    c.heads.floor = kFloors[random.Below(5)];
    c.heads.threshold = 0.25 * random.Below(10) - 1.0;
    c.n_lists = turn % 7 == 0 ? 33 + random.Below(10) : 1 + random.Below(8);
    c.n_sink = random.Below(3);
    c.n_recent = random.Below(4);
    c.kind = turn / 3 % 5;
    const uint32_t n_most = turn % 10 == 0 ? 1500 : turn % 2 == 0 ? 200 : 20;
    c.keep_stride = random.Below(2) == 0 ? 0 : n_most + random.Below(5);
    Check(c, 1 + random.Below(3), n_most, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestCounts(); }
