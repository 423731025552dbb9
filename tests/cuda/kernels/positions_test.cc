// Positions and lengths after an eviction.
#include "cuda/kernels/positions.cu"

#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

std::vector<int32_t> AscendingBelow(uint32_t end, uint32_t n, Random& random) {
  std::vector<int32_t> list;
  for (uint32_t i = 0; i < end && list.size() < n; ++i) {
    const uint32_t left = n - static_cast<uint32_t>(list.size());
    if (random.Below(end - i) < left) list.push_back(static_cast<int32_t>(i));
  }
  return list;
}

// Layers have their slots listed in part, wholly or not at all, with and
// without a keep list.
void TestMapPositions() {
  Random random(TestSeed("positions/map"));
  for (uint32_t turn = 0; turn < 40; ++turn) {
    const uint32_t n_lists = 1 + turn % 3;
    const uint32_t n_layers = 1 + random.Below(4);
    cuda::PositionsParams p = {};
    p.n_lists = n_lists;
    p.keep_stride = turn % 5 == 0 ? 640 : 0;
    ListTable counts(n_lists, random.Below(2) == 0, 1);
    ListTable listed(n_lists, random.Below(2) == 0, 1);
    std::vector<std::vector<int32_t>> kept(n_layers), keep(n_layers),
        out(n_layers), expected(n_layers);
    std::vector<uint32_t> most_kept(n_layers), most_keep(n_layers),
        tails(n_layers);
    for (uint32_t l = 0; l < n_layers; ++l) {
      const uint32_t n_tokens = 1 + random.Below(600);
      most_kept[l] = random.Below(n_tokens + 1);
      most_keep[l] = random.Below(n_tokens + 1);
      tails[l] = 3 * most_kept[l] + random.Below(100);
      counts.AddLayer(0, most_keep[l], random);
      listed.AddLayer(0, most_kept[l], random);
    }
    for (uint32_t l = 0; l < n_layers; ++l) {
      const bool first_slots = random.Below(4) == 0;
      const uint32_t stride = p.keep_stride == 0 ? most_keep[l] : p.keep_stride;
      kept[l].assign(size_t{n_lists} * most_kept[l], INT32_MAX);
      keep[l].assign(size_t{n_lists} * stride, INT32_MAX);
      out[l].assign(size_t{n_lists} * most_keep[l], -1);
      expected[l] = out[l];
      for (uint32_t list = 0; list < n_lists; ++list) {
        const uint32_t n_kept = listed.Of(l, list);
        const auto held = AscendingBelow(tails[l], n_kept, random);
        const auto chosen = AscendingBelow(600, counts.Of(l, list), random);
        std::copy(held.begin(), held.end(),
                  kept[l].begin() + size_t{list} * most_kept[l]);
        std::copy(chosen.begin(), chosen.end(),
                  keep[l].begin() + size_t{list} * stride);
        for (uint32_t i = 0; i < chosen.size(); ++i) {
          const uint32_t slot =
              first_slots ? i : static_cast<uint32_t>(chosen[i]);
          expected[l][size_t{list} * most_keep[l] + i] =
              slot < n_kept ? held[slot]
                            : static_cast<int32_t>(tails[l] + slot - n_kept);
        }
      }
      p.layers[l] = {first_slots ? 0 : Address(keep[l].data()),
                     Address(out[l].data()),
                     {Address(kept[l].data()), most_kept[l], tails[l],
                      listed.FirstOf(l), 0},
                     most_keep[l],
                     counts.FirstOf(l)};
    }
    p.counts = counts.table();
    p.kept = listed.table();
    Run(cuda::map_positions, {3, n_lists, n_layers}, cuda::kPositionsThreads, p,
        Schedule(turn));
    for (uint32_t l = 0; l < n_layers; ++l) {
      ExpectSame(out[l], expected[l], "map_positions", turn);
    }
  }
}

void TestLengths() {
  constexpr uint32_t kLayers = 400;
  constexpr uint32_t kFirst = 3;
  constexpr uint32_t kSet = 300;  // larger than a block
  std::vector<uint32_t> lengths(2 * kLayers);
  for (uint32_t i = 0; i < 2 * kLayers; ++i) lengths[i] = 1000 * i;
  std::vector<uint32_t> expected = lengths;
  cuda::LengthsParams p = {};
  p.lengths = Address(lengths.data());
  p.first_list = kFirst;
  p.n_lists = kSet;
  p.logical = 777;
  p.more = 5;
  for (uint32_t l = 0; l < kSet; ++l) {
    p.values[l] = 7 * l;
    expected[2 * (kFirst + l)] = 7 * l;
    expected[2 * (kFirst + l) + 1] = 777;
  }
  Run(cuda::set_lengths, {2}, cuda::kPositionsThreads, p, Schedule(0));
  ExpectSame(lengths, expected, "set_lengths", 0);

  p.first_list = kFirst + 1;
  for (uint32_t i = 0; i < kSet; ++i) expected[kFirst + 1 + i] += 5;
  Run(cuda::advance_counts, {2}, cuda::kPositionsThreads, p, Schedule(1));
  ExpectSame(lengths, expected, "advance_counts", 1);

  std::copy_n(p.values, kSet, expected.begin() + kFirst + 1);
  Run(cuda::set_counts, {2}, cuda::kPositionsThreads, p, Schedule(2));
  ExpectSame(lengths, expected, "set_counts", 2);
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestMapPositions();
  kvevict::TestLengths();
}
