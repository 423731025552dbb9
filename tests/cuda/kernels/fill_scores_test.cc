// Drawn scores have the bits of core/signals, the caller's too where they decay, and those
// from attention sums have the bits of the CPU's kernels.
#include "cuda/kernels/fill_scores.cu"

#include <bit>
#include <cmath>

#include "core/kernels/attention_sums.h"
#include "core/kernels/pool1d.h"
#include "core/signals/signals.h"
#include "tests/cuda/kernels/counts.h"

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

constexpr uint32_t kFirstSlot = 70;  // layers that begin after others

int32_t PositionOf(const Layer& layer, uint32_t list, uint32_t slot) {
  return slot < layer.n_kept
             ? layer.kept[list * layer.n_kept + slot]
             : static_cast<int32_t>(layer.tail_position + slot - layer.n_kept);
}

using Rows = std::vector<std::vector<float>>;  // one per layer

Rows RowsFor(const std::vector<Layer>& layers) {
  Rows rows;
  for (const Layer& layer : layers) {
    rows.emplace_back(kHeads * layer.n_tokens, -77.0f);
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
      const uint32_t first = turn % 2 * kFirstSlot;
      const std::vector<Layer> layers = SomeLayers(n_lists, random);
      Rows rows = RowsFor(layers);
      cuda::FillScoresParams p = ParamsFor(layers, n_lists, rows);
      p.seed = seed;
      for (size_t l = 0; l < layers.size(); ++l) {
        p.layers[l].slots.first_slot = first;
      }
      Run(cuda::random_scores,
          {kBlocks, kHeads, static_cast<uint32_t>(layers.size())},
          cuda::kFillThreads, p, Schedule(turn));
      for (size_t l = 0; l < layers.size(); ++l) {
        std::vector<float> expected;
        for (uint32_t h = 0; h < kHeads; ++h) {
          for (uint32_t s = 0; s < layers[l].n_tokens; ++s) {
            const int32_t position =
                PositionOf(layers[l], n_lists == 1 ? 0 : h, first + s);
            expected.push_back(RandomScore(seed, layers[l].number, h,
                                           static_cast<uint32_t>(position)));
          }
        }
        ExpectSame(rows[l], expected, "random_scores", turn);
      }
      ++turn;
    }
  }
}

// Decaying scores have the bits of core/signals, others are copied.
void TestCallerScores(uint32_t half_life) {
  Random random(TestSeed("fill_scores/caller"));
  const uint32_t n_lists = half_life == 7 ? kHeads : 1;
  const std::vector<Layer> layers = SomeLayers(n_lists, random);
  const uint32_t head_stride = 513 + 7;
  std::vector<float> caller(kHeads * head_stride * layers.size());
  for (float& score : caller) {
    score = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
  }
  Rows rows = RowsFor(layers);
  cuda::FillScoresParams p = ParamsFor(layers, n_lists, rows);
  p.head_stride = head_stride;
  p.half_life = half_life;
  for (size_t l = 0; l < layers.size(); ++l) {
    p.layers[l].rows = Address(&caller[l * kHeads * head_stride]);
    p.layers[l].n_seen = 3000 + static_cast<uint32_t>(l);
  }
  Run(cuda::caller_scores,
      {kBlocks, kHeads, static_cast<uint32_t>(layers.size())},
      cuda::kFillThreads, p, Schedule(0));
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<float> expected;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t s = 0; s < layers[l].n_tokens; ++s) {
        float score = caller[(l * kHeads + h) * head_stride + s];
        if (half_life > 0) {
          const int32_t position =
              PositionOf(layers[l], n_lists == 1 ? 0 : h, s);
          score *= DecayFactor(
              p.layers[l].n_seen - 1 - static_cast<uint32_t>(position),
              half_life);
        }
        expected.push_back(score);
      }
    }
    ExpectSame(rows[l], expected, "caller_scores", half_life);
  }
}

// ---- From sums ----

struct SumCase {
  uint32_t n_sum_rows;  // per KV head; 0: one for all
  uint32_t n_score_rows;
  Reduce reduce;
  bool divides;
  uint32_t n_lists;
  uint32_t n_summed = INT32_MAX;
};

std::vector<float> SomeSums(size_t n, Random& random) {
  std::vector<float> sums(n);
  for (float& sum : sums) {
    sum = random.Below(8) == 0
              ? DrawRare(random)
              : static_cast<float>(random.Below(1u << 24)) * 0x1p-20f;
  }
  return sums;
}

// The CPU's result for a row of scores.
std::vector<float> RowOf(const SumCase& c, const Layer& layer, uint32_t row,
                         const float* sums, uint32_t head_stride,
                         uint32_t n_seen) {
  const uint32_t head = row / c.n_score_rows;
  const bool is_own = c.n_sum_rows == c.n_score_rows;
  std::vector<float> scores(layer.n_tokens);
  ReduceRows(SimdTargetAt(0),
             sums + size_t{is_own ? row : head * c.n_sum_rows} * head_stride,
             is_own ? 1 : std::max(1u, c.n_sum_rows), head_stride,
             scores.size(), c.reduce, scores.data());
  if (c.divides) {
    SlotPositions slots;
    slots.kept = layer.kept.data();
    slots.n_kept = layer.n_kept;
    slots.n_lists = c.n_lists;
    slots.tail_position = layer.tail_position;
    DivideByQueries(SimdTargetAt(0), slots, c.n_lists == 1 ? 0 : head, 0,
                    layer.n_tokens, n_seen, c.n_summed, scores.data());
  }
  return scores;
}

void TestSumScores() {
  Random random(TestSeed("fill_scores/sums"));
  constexpr SumCase kCases[] = {
      {4, 1, Reduce::kMean, false, 1},     {4, 1, Reduce::kMax, true, 1},
      {7, 1, Reduce::kSum, true, kHeads},  {1, 1, Reduce::kMean, true, kHeads},
      {4, 4, Reduce::kMean, true, kHeads}, {1, 4, Reduce::kMean, true, 1},
      {4, 1, Reduce::kSum, true, 1, 900},  {0, 1, Reduce::kSum, true, 1, 2900},
      {0, 4, Reduce::kMean, false, 1}};
  uint32_t turn = 0;
  for (const SumCase& c : kCases) {
    const std::vector<Layer> layers = SomeLayers(c.n_lists, random);
    const uint32_t n_rows = kHeads * c.n_score_rows;
    const uint32_t n_sums = std::max(1u, kHeads * c.n_sum_rows);
    const uint32_t head_stride = 513 + 2;
    const size_t layer_stride = size_t{n_sums} * head_stride;
    const std::vector<float> sums =
        SomeSums(layer_stride * layers.size(), random);
    Rows rows;
    for (const Layer& layer : layers) {
      rows.emplace_back(n_rows * layer.n_tokens, -77.0f);
    }
    cuda::FillScoresParams p = ParamsFor(layers, c.n_lists, rows);
    p.head_stride = head_stride;
    p.n_sum_rows = c.n_sum_rows;
    p.n_score_rows = c.n_score_rows;
    p.is_max = c.reduce == Reduce::kMax;
    p.scale = c.reduce == Reduce::kMean && c.n_score_rows == 1
                  ? 1.0f / static_cast<float>(std::max(1u, c.n_sum_rows))
                  : 1.0f;
    p.divides = c.divides;
    p.n_summed = c.n_summed;
    for (size_t l = 0; l < layers.size(); ++l) {
      p.layers[l].rows = Address(&sums[l * layer_stride]);
      p.layers[l].n_seen = 3000 + static_cast<uint32_t>(l);
    }
    Run(cuda::sum_scores,
        {kBlocks, n_rows, static_cast<uint32_t>(layers.size())},
        cuda::kFillThreads, p, Schedule(turn));
    for (size_t l = 0; l < layers.size(); ++l) {
      std::vector<float> expected;
      for (uint32_t r = 0; r < n_rows; ++r) {
        const std::vector<float> row =
            RowOf(c, layers[l], r, &sums[l * layer_stride], head_stride,
                  p.layers[l].n_seen);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      ExpectSame(rows[l], expected, "sum_scores", turn);
    }
    ++turn;
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestRandomScores();
  for (const uint32_t half_life : {0u, 1u, 7u, 1000u, 1u << 31}) {
    kvevict::TestCallerScores(half_life);
  }
  kvevict::TestSumScores();
}
