// Positions and lengths after an eviction.
#include "cuda/kernels/positions.cu"

#include "tests/cuda/kernels/launch.h"

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

// Layers whose slots are listed in part, wholly or not at all, with and without
// a keep list.
void TestMapPositions() {
  Random random(TestSeed("positions/map"));
  for (uint32_t turn = 0; turn < 40; ++turn) {
    const uint32_t n_lists = 1 + turn % 3;
    const uint32_t n_layers = 1 + random.Below(4);
    cuda::PositionsParams p = {};
    p.n_lists = n_lists;
    std::vector<std::vector<int32_t>> kept(n_layers), keep(n_layers),
        out(n_layers), expected(n_layers);
    for (uint32_t l = 0; l < n_layers; ++l) {
      const uint32_t n_tokens = 1 + random.Below(600);
      const uint32_t n_kept = random.Below(n_tokens + 1);
      const uint32_t n_keep = random.Below(n_tokens + 1);
      const uint32_t tail = 3 * n_kept + random.Below(100);
      const bool first_slots = random.Below(4) == 0;
      for (uint32_t list = 0; list < n_lists; ++list) {
        const auto held = AscendingBelow(tail, n_kept, random);
        const auto chosen = AscendingBelow(n_tokens, n_keep, random);
        kept[l].insert(kept[l].end(), held.begin(), held.end());
        keep[l].insert(keep[l].end(), chosen.begin(), chosen.end());
        for (uint32_t i = 0; i < n_keep; ++i) {
          const uint32_t slot =
              first_slots ? i : static_cast<uint32_t>(chosen[i]);
          expected[l].push_back(
              slot < n_kept ? held[slot]
                            : static_cast<int32_t>(tail + slot - n_kept));
        }
      }
      out[l].assign(size_t{n_lists} * n_keep, -1);
      p.layers[l] = {first_slots ? 0 : Address(keep[l].data()),
                     Address(out[l].data()),
                     {Address(kept[l].data()), n_kept, tail},
                     n_keep,
                     0};
    }
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
  constexpr uint32_t kSet = 300;  // more than a block
  std::vector<uint32_t> lengths(2 * kLayers);
  for (uint32_t i = 0; i < 2 * kLayers; ++i) lengths[i] = 1000 * i;
  std::vector<uint32_t> expected = lengths;
  cuda::LengthsParams p = {};
  p.lengths = Address(lengths.data());
  p.first_layer = kFirst;
  p.n_layers = kSet;
  p.logical = 777;
  p.n_tokens = 5;
  for (uint32_t l = 0; l < kSet; ++l) {
    p.stored[l] = 7 * l;
    expected[2 * (kFirst + l)] = 7 * l;
    expected[2 * (kFirst + l) + 1] = 777;
  }
  Run(cuda::set_lengths, {2}, cuda::kPositionsThreads, p, Schedule(0));
  ExpectSame(lengths, expected, "set_lengths", 0);

  p.first_layer = kFirst + 1;
  for (uint32_t l = 0; l < kSet; ++l) {
    expected[2 * (kFirst + 1 + l)] += 5;
    expected[2 * (kFirst + 1 + l) + 1] += 5;
  }
  Run(cuda::advance_lengths, {2}, cuda::kPositionsThreads, p, Schedule(1));
  ExpectSame(lengths, expected, "advance_lengths", 1);
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestMapPositions();
  kvevict::TestLengths();
}
