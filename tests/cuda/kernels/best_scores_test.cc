// Scores that depend on which of a list are best have the bits of the CPU's kernels.
#include "cuda/kernels/best_scores.cu"

#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "core/kernels/best_share.h"
#include "core/kernels/topk.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Case {
  cuda::SelectInput input;
  uint32_t n_lists;
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t kind;
  bool secures;  // else normalizes
  bool to_keys;  // writes in the place of keys
  Tie tie;
  float share;
};

struct Layer {
  uint32_t n_tokens;  // of any list, the most
  uint32_t n_keep;
  uint32_t n_best;
  std::vector<float> scores;
  std::vector<uint32_t> keys;  // some pinned in the middle
  std::vector<float> expected;
};

// Computes what core/cpu does for a list that keeps n_keep.
void ChangeOnHost(const Case& c, uint32_t n, uint32_t n_keep, uint32_t n_best,
                  const uint32_t* keys, float* scores) {
  const SimdTarget simd = SimdTargetAt(0);
  if (!c.secures) {
    return ScaleByBestShare(simd, keys, n, n_best, scores, scores);
  }
  n_keep = std::min(n_keep, n);
  const auto part = static_cast<uint32_t>(static_cast<float>(n_keep) * c.share);
  std::vector<int32_t> best(std::min(std::max(part, n_best), n_keep));
  SelectTopK(simd, keys, n, best.size(), c.tie, best.data());
  for (int32_t place : best) scores[place] = kInfinity;
}

Layer MakeLayer(const Case& c, const ListTable& tokens, size_t l,
                uint32_t n_tokens, Random& random) {
  Layer layer = {n_tokens, 0, random.Below(n_tokens + 2), {}, {}, {}};
  for (uint32_t i = 0; i < c.n_lists * n_tokens; ++i) {
    layer.scores.push_back(std::abs(DrawScore(c.kind, random)));
  }
  layer.keys.resize(layer.scores.size());
  ScoresToKeys(SimdTargetAt(0), layer.scores.data(), layer.scores.size(),
               layer.keys.data());
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    const uint32_t n = tokens.Of(l, list);
    uint32_t* const keys = &layer.keys[size_t{list} * n_tokens];
    for (uint32_t i = 0; i < n; ++i) {
      const bool at_end = i < c.n_sink || i + c.n_recent >= n;
      const bool pinned = c.input == cuda::kSelectKeys && random.Below(10) == 0;
      if (at_end || pinned) keys[i] = kForcedKey;
    }
  }
  layer.expected = layer.scores;
  return layer;
}

void Check(const Case& c, uint32_t n_layers, uint32_t n_most, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_lists, turn % 3 != 0, 2);
  ListTable keep(c.n_lists, turn % 4 == 1, 1);
  std::vector<uint32_t> n_tokens, n_keep;
  for (uint32_t l = 0; l < n_layers; ++l) {
    n_tokens.push_back(1 + random.Below(n_most));
    n_keep.push_back(1 + random.Below(n_tokens[l]));
    tokens.AddLayer(0, n_tokens[l], random);
    keep.AddLayer(0, n_keep[l], random);
  }
  std::vector<Layer> layers;
  for (uint32_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeLayer(c, tokens, l, n_tokens[l], random));
    for (uint32_t list = 0; list < c.n_lists; ++list) {
      const size_t row = size_t{list} * n_tokens[l];
      ChangeOnHost(c, tokens.Of(l, list), keep.Of(l, list), layers[l].n_best,
                   &layers[l].keys[row], &layers[l].expected[row]);
    }
  }
  cuda::BestParams p = {};
  p.lists = {tokens.table(), keep.table(), 0, c.n_lists, c.tie == Tie::kHigher,
             c.n_sink,       c.n_recent,   1, 0,         0};
  p.input = c.input;
  p.share = c.share;
  for (uint32_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    const uint64_t scores = Address(layer.scores.data());
    const uint64_t keys = Address(layer.keys.data());
    const uint64_t words = c.input == cuda::kSelectKeys ? keys : scores;
    p.layers[l] = {
        {words, 0, n_tokens[l], n_keep[l], tokens.FirstOf(l), keep.FirstOf(l)},
        scores,
        c.to_keys ? keys : scores,
        layer.n_best,
        0};
  }
  Run(c.secures ? cuda::pin_best : cuda::scale_by_best_share,
      {c.n_lists, n_layers}, cuda::kSelectThreads, p, Schedule(turn));
  for (uint32_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    for (uint32_t list = 0; c.to_keys && list < c.n_lists; ++list) {
      const size_t row = size_t{list} * n_tokens[l];
      std::memcpy(&layer.scores[row], &layer.keys[row],
                  tokens.Of(l, list) * sizeof(float));
    }
    ExpectSame(layer.scores, layer.expected,
               c.secures ? "secured" : "normalized", turn);
  }
}

void TestBest() {
  constexpr float kShares[] = {0.0f, 0.3f, 0.5f, 0.7f, 1.0f};
  Random random(TestSeed("best_scores"));
  for (uint32_t turn = 0; turn < 100; ++turn) {
    Case c = {};
    c.secures = turn % 2 == 0;
    c.to_keys = !c.secures && random.Below(2) == 0;
    c.input = random.Below(3) == 0 ? cuda::kSelectKeys : cuda::kSelectScores;
    c.n_lists = 1 + random.Below(4);
    c.n_sink = random.Below(3);
    c.n_recent = random.Below(4);
    c.kind = turn / 2 % 5;
    c.tie = random.Below(2) == 0 ? Tie::kLower : Tie::kHigher;
    c.share = kShares[random.Below(5)];
    const uint32_t n_most = turn % 10 < 2 ? 2500 : turn % 4 < 2 ? 300 : 20;
    Check(c, 1 + random.Below(3), n_most, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestBest(); }
