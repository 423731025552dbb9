// Leverage of keys in any layout, bit for bit as core/kernels does.
#include "cuda/kernels/leverage.cu"

#include "core/kernels/leverage.h"
#include "core/view/rope.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 90;

// Positions that leave out some, as after evictions.
std::vector<int32_t> DrawPositions(size_t n, Random& random) {
  std::vector<int32_t> positions;
  auto next = static_cast<int32_t>(random.Below(1000));
  for (size_t i = 0; i < n; ++i) {
    positions.push_back(next);
    next += 1 + static_cast<int32_t>(random.Below(3));
  }
  return positions;
}

// The CPU's result for the slots of a head, 0 at both ends.
Wanted LeverageOf(const cuda::LeverageParams& p, const RowSource& keys,
                  uint32_t dim, const int32_t* positions, uint32_t n) {
  const uint32_t first = std::min(p.n_sink, n);
  std::vector<float> out(n);
  std::vector<uint64_t> scratch(LeverageScratchBytes(dim).value() / 8 + 8);
  Leverage leverage;
  leverage.keys = keys;
  leverage.first_row = first;
  leverage.n_rows = n - std::min(p.n_recent, n - first) - first;
  leverage.head_dim = dim;
  leverage.positions = positions + first;
  leverage.turns = p.turns;
  leverage.n_pairs = p.n_pairs;
  leverage.is_interleaved = p.is_interleaved != 0;
  leverage.out = out.data() + first;
  leverage.scratch =
      reinterpret_cast<void*>((Address(scratch.data()) + 63) / 64 * 64);
  ComputeLeverage(SimdTargetAt(0), leverage);
  Wanted wanted;
  wanted.values.assign(out.begin(), out.end());
  return wanted;
}

void Check(const PlaneShape& k, uint32_t turn, Random& random) {
  if (k.head_dim < 2 || k.head_dim > cuda::kLeverageMostDim) return;
  CacheLaunch c(k, 1 + turn % 2, 0, random);
  c.Draw(turn % 7 == 6 ? 0 : 1, random);
  auto p = c.Lend<cuda::LeverageParams>();
  p.slot_lists = random.Below(2) == 0 ? 1 : k.n_heads;
  p.n_sink = random.Below(5);
  p.n_recent = random.Below(5);
  p.n_pairs = 1 + random.Below(k.head_dim / 2);
  p.is_interleaved = turn / 2 % 2;
  for (uint32_t f = 0; f < p.n_pairs; ++f) {
    const double part = static_cast<double>(f) / p.n_pairs;
    p.turns[f] = TurnsOf(static_cast<float>(std::pow(1e4, -part)));
  }
  std::vector<double> matrices(
      c.n_all_heads() * cuda::LeverageDoubles(k.head_dim), NAN);
  p.matrices = Address(matrices.data());
  std::vector<std::vector<int32_t>> positions;  // [slot_lists, n_tokens]
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const uint32_t n = c.layers[l].n_tokens;
    positions.push_back(DrawPositions(size_t{p.slot_lists} * n, random));
    p.layers[l].rows = Address(c.layers[l].scores.data());
    p.layers[l].slots.kept = Address(positions[l].data());
    p.layers[l].slots.n_kept = n;
  }
  const auto run = [&](const auto& kernel, const simt::Dim3& grid) {
    Run(kernel, grid, cuda::kLeverageThreads, p, Schedule(turn));
  };
  run(cuda::leverage_gram, c.Grid(cuda::LeverageTiles(k.head_dim), 1));
  run(cuda::leverage_factor, {k.n_heads, c.n_layers()});
  run(cuda::leverage_scores, c.Grid(kMost, cuda::kLeverageTile));
  c.Compare(turn, [&](size_t l, uint32_t head, uint32_t n) {
    const CacheLayer& layer = c.layers[l];
    const size_t list = p.slot_lists == 1 ? 0 : head;
    return LeverageOf(p, HeadSource(k, layer.memory, layer.tables, head),
                      k.head_dim, &positions[l][list * layer.n_tokens], n);
  });
}

}  // namespace
}  // namespace kvevict

int main() {
  using namespace kvevict;  // NOLINT
  if (!HasFusedArithmetic(SimdTargetAt(0))) return 0;
  Random random(TestSeed("leverage"));
  constexpr uint32_t kDims[] = {2, 3, 16, 31, 33, 40, 64, 72, 100};
  for (uint32_t turn = 0; turn < 27; ++turn) {
    Check(RandomPlane(DTypeOfTurn(turn),
                      kDims[turn / kNDTypes % std::size(kDims)],
                      1 + random.Below(2), kMost, random),
          turn, random);
  }
}
