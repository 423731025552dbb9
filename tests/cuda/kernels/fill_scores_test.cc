// Drawn scores with the bits of core/signals, the caller's copied.
#include "cuda/kernels/fill_scores.cu"

#include <bit>

#include "core/signals/signals.h"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {
namespace {

constexpr uint32_t kHeads = 3;

// A layer after an eviction, or before (n_kept 0).
struct Layer {
  uint32_t n_tokens;
  uint32_t n_kept;
  uint32_t tail_position;
  uint32_t number;
  std::vector<int32_t> kept;  // [n_lists, n_kept]
};

std::vector<Layer> SomeLayers(uint32_t n_lists, Random& random) {
  std::vector<Layer> layers = {{1, 0, 0, 0, {}},
                               {300, 0, 17, 5, {}},
                               {255, 200, 2000, 4095, {}},
                               {513, 513, 900, 7, {}}};
  for (Layer& layer : layers) {
    for (uint32_t i = 0; i < n_lists * layer.n_kept; ++i) {
      layer.kept.push_back(
          static_cast<int32_t>(2 * (i % layer.n_kept) + random.Below(2)));
    }
  }
  return layers;
}

int32_t PositionOf(const Layer& layer, uint32_t list, uint32_t slot) {
  return slot < layer.n_kept
             ? layer.kept[list * layer.n_kept + slot]
             : static_cast<int32_t>(layer.tail_position + slot - layer.n_kept);
}

using Rows = std::vector<std::vector<uint32_t>>;  // bits, a row per layer

Rows RowsFor(const std::vector<Layer>& layers) {
  Rows rows;
  for (const Layer& layer : layers) {
    rows.emplace_back(kHeads * layer.n_tokens, 0xA5A5A5A5u);
  }
  return rows;
}

cuda::FillScoresParams ParamsFor(const std::vector<Layer>& layers,
                                 uint32_t n_lists, Rows& rows) {
  cuda::FillScoresParams p = {};
  p.n_kv_heads = kHeads;
  p.n_lists = n_lists;
  for (size_t l = 0; l < layers.size(); ++l) {
    p.layers[l].scores = Address(rows[l].data());
    p.layers[l].slots = {Address(layers[l].kept.data()), layers[l].n_kept,
                         layers[l].tail_position, 0, 0};
    p.layers[l].n_tokens = layers[l].n_tokens;
    p.layers[l].layer = layers[l].number;
  }
  return p;
}

constexpr uint32_t kBlocks = 3;  // of 256 slots each, for 513

void TestRandomScores() {
  Random random(TestSeed("fill_scores/random"));
  uint32_t turn = 0;
  for (uint32_t n_lists : {1u, kHeads}) {
    for (uint64_t seed : {uint64_t{0}, random.Next()}) {
      const std::vector<Layer> layers = SomeLayers(n_lists, random);
      Rows rows = RowsFor(layers);
      cuda::FillScoresParams p = ParamsFor(layers, n_lists, rows);
      p.seed = seed;
      Run(cuda::random_scores,
          {kBlocks, kHeads, static_cast<uint32_t>(layers.size())},
          cuda::kFillThreads, p, Schedule(turn));
      for (size_t l = 0; l < layers.size(); ++l) {
        std::vector<uint32_t> expected;
        for (uint32_t h = 0; h < kHeads; ++h) {
          for (uint32_t s = 0; s < layers[l].n_tokens; ++s) {
            const int32_t position =
                PositionOf(layers[l], n_lists == 1 ? 0 : h, s);
            expected.push_back(std::bit_cast<uint32_t>(RandomScore(
                seed, layers[l].number, h, static_cast<uint32_t>(position))));
          }
        }
        ExpectSame(rows[l], expected, "random_scores", turn);
      }
      ++turn;
    }
  }
}

void TestCallerScores() {
  Random random(TestSeed("fill_scores/caller"));
  const std::vector<Layer> layers = SomeLayers(1, random);
  const uint32_t head_stride = 513 + 7;
  std::vector<uint32_t> caller(kHeads * head_stride * layers.size());
  for (uint32_t& bits : caller) bits = static_cast<uint32_t>(random.Next());
  Rows rows = RowsFor(layers);
  cuda::FillScoresParams p = ParamsFor(layers, 1, rows);
  p.caller_head_stride = head_stride;
  for (size_t l = 0; l < layers.size(); ++l) {
    p.layers[l].caller = Address(&caller[l * kHeads * head_stride]);
  }
  Run(cuda::caller_scores,
      {kBlocks, kHeads, static_cast<uint32_t>(layers.size())},
      cuda::kFillThreads, p, Schedule(0));
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<uint32_t> expected;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t s = 0; s < layers[l].n_tokens; ++s) {
        expected.push_back(caller[(l * kHeads + h) * head_stride + s]);
      }
    }
    ExpectSame(rows[l], expected, "caller_scores", 0);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestRandomScores();
  kvevict::TestCallerScores();
}
