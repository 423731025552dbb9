// Rotates keys in any layout, bit for bit as core/kernels does.
#include "cuda/kernels/rotate_rows.cu"

#include <cmath>

#include "core/kernels/rotate_rows.h"
#include "core/view/rope.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 90;

int32_t DrawOffset(Random& random) {
  if (random.Below(3) == 0) return 0;
  const auto far = static_cast<int32_t>(random.Below(1u << 31));
  return random.Below(2) == 0 ? -far : static_cast<int32_t>(random.Below(9));
}

void Check(const PlaneShape& k, bool has_counts, Random& random,
           uint32_t turn) {
  if (k.head_dim < 2) return;
  ListTable tokens(k.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 3;
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(kMost), random);
  }
  cuda::RotateParams p = {};
  p.keys = k.cache_rows();
  p.tokens = tokens.table();
  p.n_lists = random.Below(2) == 0 ? 1 : k.n_heads;
  p.n_pairs = 1 + random.Below(std::min(k.head_dim / 2, p.kMaxPairs));
  p.is_interleaved = turn / 2 % 2;
  p.from_slots = turn / 4 % 2;
  for (uint32_t f = 0; f < p.n_pairs; ++f) {
    const double part = static_cast<double>(f) / p.n_pairs;
    p.turns[f] = TurnsOf(static_cast<float>(std::pow(1e4, -part)));
  }
  std::vector<CacheLayer> layers;
  std::vector<std::vector<int32_t>> offsets;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeCacheLayer(k, tokens, l, {}, random));
    offsets.emplace_back(size_t{p.n_lists} * layers[l].n_tokens);
    for (int32_t& offset : offsets[l]) offset = DrawOffset(random);
    for (size_t i = 0; p.from_slots != 0 && i < offsets[l].size(); ++i) {
      const size_t slot = i % layers[l].n_tokens;
      offsets[l][i] = static_cast<int32_t>(slot + random.Below(3) / 2 * 900);
    }
  }
  // The CPU's result.
  std::vector<CacheLayer> expected = layers;
  for (size_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < k.n_heads; ++h) {
      CacheLayer& layer = expected[l];
      const size_t list = p.n_lists == 1 ? 0 : h;
      const RowSource rows = HeadSource(k, layer.memory, layer.tables, h);
      RotateRowsInPlace(SimdTargetAt(0),
                        {&rows, 1, 0, tokens.Of(l, h),
                         offsets[l].data() + list * layer.n_tokens, p.turns,
                         p.n_pairs, p.is_interleaved != 0, p.from_slots != 0});
    }
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()), Address(offsets[l].data()),
                   layers[l].n_tokens, tokens.FirstOf(l)};
  }
  Run(cuda::rotate_rows,
      {(kMost + cuda::kRotateRows - 1) / cuda::kRotateRows, k.n_heads,
       n_layers},
      cuda::kRotateThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    if (layers[l].memory == expected[l].memory) continue;
    Fail("case %u, layer %zu: other bytes than the CPU's", turn, l);
  }
}

void TestRotation() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("rotate_rows"));
  for (uint32_t turn = 0; turn < 99; ++turn) {
    const PlaneShape k = PlaneOfTurn(turn, kMost, random);
    Check(k, random.Below(2) == 0, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestRotation(); }
