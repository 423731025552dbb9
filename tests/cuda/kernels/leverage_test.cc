// Leverage of keys in any layout, bit for bit as core/kernels does.
#include "cuda/kernels/leverage.cu"

#include <bit>
#include <cmath>
#include <limits>

#include "core/kernels/leverage.h"
#include "core/view/rope.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 90;
constexpr float kGuard = -77.0f;

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

struct Case {
  cuda::LeverageParams p = {};
  std::vector<CacheLayer> layers;
  std::vector<std::vector<int32_t>> positions;  // [slot_lists, n_tokens]
  std::vector<std::vector<float>> rows;
  std::vector<double> matrices;
};

// The CPU's result, and the guards behind the slots of a head.
std::vector<uint32_t> Expected(const Case& c, const PlaneShape& k, size_t l,
                               uint32_t head, uint32_t n) {
  const CacheLayer& layer = c.layers[l];
  const uint32_t first = std::min(c.p.n_sink, n);
  const uint32_t end = n - std::min(c.p.n_recent, n - first);
  std::vector<float> out(layer.n_tokens, kGuard);
  std::fill_n(out.begin(), n, 0.0f);
  const size_t list = c.p.slot_lists == 1 ? 0 : head;
  std::vector<uint64_t> scratch(LeverageScratchBytes(k.head_dim).value() / 8 +
                                8);
  const uint64_t begin = (Address(scratch.data()) + 63) / 64 * 64;
  Leverage leverage;
  leverage.keys = HeadSource(k, layer.memory, layer.tables, head);
  leverage.first_row = first;
  leverage.n_rows = end - first;
  leverage.head_dim = k.head_dim;
  leverage.positions = c.positions[l].data() + list * layer.n_tokens + first;
  leverage.turns = c.p.turns;
  leverage.n_pairs = c.p.n_pairs;
  leverage.is_interleaved = c.p.is_interleaved != 0;
  leverage.out = out.data() + first;
  leverage.scratch = reinterpret_cast<void*>(begin);
  ComputeLeverage(SimdTargetAt(0), leverage);
  std::vector<uint32_t> bits;
  for (float v : out) {
    bits.push_back(std::isnan(v) ? 0x7fc00000u : std::bit_cast<uint32_t>(v));
  }
  return bits;
}

void Check(const PlaneShape& k, Random& random, uint32_t turn) {
  if (k.head_dim < 2 || k.head_dim > cuda::kLeverageMostDim) return;
  ListTable tokens(k.n_heads, random.Below(2) == 0, 2);
  const uint32_t n_layers = 1 + turn % 2;
  Case c;
  c.p.keys = k.cache_rows();
  c.p.n_kv_heads = k.n_heads;
  c.p.slot_lists = random.Below(2) == 0 ? 1 : k.n_heads;
  c.p.n_sink = random.Below(5);
  c.p.n_recent = random.Below(5);
  c.p.n_pairs = 1 + random.Below(k.head_dim / 2);
  c.p.is_interleaved = turn / 2 % 2;
  for (uint32_t f = 0; f < c.p.n_pairs; ++f) {
    const double part = static_cast<double>(f) / c.p.n_pairs;
    c.p.turns[f] = TurnsOf(static_cast<float>(std::pow(1e4, -part)));
  }
  std::vector<float> odd;
  if (turn % 7 == 6) odd = {std::numeric_limits<float>::quiet_NaN()};
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(kMost), random);
    c.layers.push_back(MakeCacheLayer(k, tokens, l, odd, random));
    const uint32_t n = c.layers[l].n_tokens;
    c.positions.push_back(DrawPositions(size_t{c.p.slot_lists} * n, random));
    c.rows.emplace_back(size_t{k.n_heads} * n, kGuard);
  }
  c.p.tokens = tokens.table();
  c.matrices.resize(n_layers * k.n_heads * cuda::LeverageDoubles(k.head_dim),
                    std::numeric_limits<double>::quiet_NaN());
  c.p.matrices = Address(c.matrices.data());
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t n = c.layers[l].n_tokens;
    cuda::SlotPositions slots{};
    slots.kept = Address(c.positions[l].data());
    slots.n_kept = n;
    c.p.layers[l] = {Address(c.layers[l].memory.data()),
                     Address(c.layers[l].tables.data()),
                     Address(c.rows[l].data()),
                     slots,
                     n,
                     tokens.FirstOf(l)};
  }
  Run(cuda::leverage_gram,
      {cuda::LeverageTiles(k.head_dim), k.n_heads, n_layers},
      cuda::kLeverageThreads, c.p, Schedule(turn));
  Run(cuda::leverage_factor, {k.n_heads, n_layers}, cuda::kLeverageThreads, c.p,
      Schedule(turn));
  Run(cuda::leverage_scores,
      {(kMost + cuda::kLeverageTile - 1) / cuda::kLeverageTile, k.n_heads,
       n_layers},
      cuda::kLeverageThreads, c.p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t n = c.layers[l].n_tokens;
    for (uint32_t h = 0; h < k.n_heads; ++h) {
      std::vector<uint32_t> got;
      for (uint32_t t = 0; t < n; ++t) {
        const float v = c.rows[l][size_t{h} * n + t];
        got.push_back(std::isnan(v) ? 0x7fc00000u : std::bit_cast<uint32_t>(v));
      }
      ExpectSame(got, Expected(c, k, l, h, tokens.Of(l, h)), "leverage", turn);
    }
  }
}

void TestLeverage() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("leverage"));
  constexpr uint32_t kDims[] = {2, 3, 16, 31, 33, 40, 64, 72, 100};
  for (uint32_t turn = 0; turn < 27; ++turn) {
    const PlaneShape k = RandomPlane(DTypeOfTurn(turn),
                                     kDims[turn / kNDTypes % std::size(kDims)],
                                     1 + random.Below(2), kMost, random);
    Check(k, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestLeverage(); }
