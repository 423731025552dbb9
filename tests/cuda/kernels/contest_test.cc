// What lists of all layers keep if they compete, against sorting all of their keys.
#include <algorithm>

#include "core/kernels/head_split.h"
#include "core/kernels/topk.h"
#include "cuda/kernels/contest.cu"
#include "tests/cuda/kernels/counts.h"
#include "tests/oracle/head_split.h"

namespace kvevict {
namespace {

struct Layer {
  uint32_t n_tokens;  // of the longest list
  std::vector<uint32_t> tokens;
  std::vector<float> scores;
  std::vector<uint8_t> forced;
};

Layer MakeLayer(const ListTable& tokens, size_t l, uint32_t n_lists,
                uint32_t n_ends, uint32_t kind, Random& random) {
  Layer layer = {};
  for (uint32_t list = 0; list < n_lists; ++list) {
    layer.tokens.push_back(tokens.Of(l, list));
    layer.n_tokens = std::max(layer.n_tokens, layer.tokens[list]);
  }
  const float level = 1.0f + random.Below(3);
  for (uint32_t list = 0; list < n_lists; ++list) {
    for (uint32_t i = 0; i < layer.n_tokens; ++i) {
      const uint32_t n = layer.tokens[list];
      // Random ones, ties, and ones that differ in the last digit alone.
      const float score =
          kind == 0   ? level * random.Gaussian()
          : kind == 1 ? static_cast<float>(random.Below(3))
                      : 1.0f + static_cast<float>(random.Below(900)) * 0x1p-23f;
      layer.scores.push_back(i < n ? score : kInfinity);  // nobody's
      layer.forced.push_back(i < n && (i < n_ends || i + n_ends >= n));
    }
  }
  return layer;
}

void Check(uint32_t turn, Random& random) {
  // More lists than a block has threads, once.
  const uint32_t n_lists = turn == 7 ? 270 : 1 + random.Below(5);
  const uint32_t n_layers = turn == 7 ? 1 : 1 + random.Below(3);
  const uint32_t n_most = turn % 5 == 0 ? 700 : turn == 7 ? 12 : 100;
  const uint32_t n_ends = random.Below(3);
  const uint32_t n_safe = random.Below(20);
  ListTable tokens(n_lists, random.Below(2) == 0, 2);
  for (uint32_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(1, 1 + random.Below(n_most), random);
  }
  std::vector<Layer> layers;
  std::vector<oracle_head> heads;
  uint64_t n_tokens = 0;
  uint64_t all_safe = 0;
  for (uint32_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeLayer(tokens, l, n_lists, n_ends, turn % 3, random));
  }
  for (const Layer& layer : layers) {
    for (uint32_t list = 0; list < n_lists; ++list) {
      const size_t row = size_t{list} * layer.n_tokens;
      heads.push_back(
          {&layer.scores[row], &layer.forced[row], layer.tokens[list]});
      n_tokens += layer.tokens[list];
      all_safe += std::min(n_safe, layer.tokens[list]);
    }
  }
  const uint32_t n_all = n_layers * n_lists;
  const uint64_t n_winners =
      all_safe + random.Below(static_cast<uint32_t>(n_tokens - all_safe) + 1);
  std::vector<uint32_t> expected(n_all);
  oracle_count_winners(heads.data(), n_all, n_winners, n_safe, expected.data());

  std::vector<uint32_t> rows(size_t{n_all} * cuda::kContestRow, 77);
  std::vector<uint64_t> totals(3 * cuda::kBins, 77);
  std::vector<uint32_t> winners(2 * size_t{n_all}, 77);
  cuda::ContestParams p = {};
  p.lists.tokens = tokens.table();
  p.lists.n_lists = n_lists;
  p.lists.n_sink = p.lists.n_recent = n_ends;
  p.input = cuda::kSelectScores;
  p.n_winners = n_winners;
  p.rows = Address(rows.data());
  p.totals = Address(totals.data());
  p.winners = Address(winners.data());
  p.n_all_lists = n_all;
  for (uint32_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {{Address(layers[l].scores.data()), 0, layers[l].n_tokens, 0,
                    tokens.FirstOf(l), 0},
                   n_safe,
                   l * n_lists};
  }
  for (p.round = 0; p.round < 3; ++p.round) {
    Run(cuda::contest_digit, {n_lists, n_layers}, cuda::kSelectThreads, p,
        Schedule(turn));
    Run(cuda::contest_totals,
        {cuda::ContestBins(p.round) / cuda::kSelectThreads},
        cuda::kSelectThreads, p, Schedule(turn));
  }
  Run(cuda::contest_count, {n_all / cuda::kSelectThreads + 1},
      cuda::kSelectThreads, p, Schedule(turn));
  uint64_t n_left = n_winners;
  for (uint32_t i = 0; i < n_all; ++i) n_left -= winners[2 * i];
  DealTies(n_left, n_all, {&winners[1], 2}, {&winners[0], 2});
  std::vector<uint32_t> counts;
  for (uint32_t i = 0; i < n_all; ++i) counts.push_back(winners[2 * i]);
  ExpectSame(counts, expected, "winners", turn);
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("contest"));
  for (uint32_t turn = 0; turn < 24; ++turn) {
    kvevict::Check(turn, random);
  }
}
