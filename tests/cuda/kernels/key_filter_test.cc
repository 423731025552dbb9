// Keys against a direction in any layout, against double precision.
#include "cuda/kernels/key_filter.cu"

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

void Check(uint32_t turn, Random& random) {
  const PlaneShape s = PlaneOfTurn(turn, 150, random);
  CacheLaunch c(s, 1 + turn % 3, 0, random);
  c.Draw(turn, random);
  auto p = c.Lend<cuda::KeyFilterParams>();
  // Some begin or end between multiples of 16 bytes.
  const uint32_t begin = random.Below(5);
  p.filter_head_stride = s.head_dim + random.Below(3);
  std::vector<std::vector<float>> filters;
  for (uint32_t l = 0; l < c.n_layers(); ++l) {
    filters.push_back(
        DrawScores(begin + s.n_heads * p.filter_head_stride, kAny, random));
    p.layers[l].filter = Address(&filters[l][begin]);
  }
  Run(cuda::filter_keys,
      c.Grid(s.n_most, cuda::KeyFilterBlockRows(p.keys.lanes)),
      cuda::kFilterThreads, p, Schedule(turn));
  c.Compare(turn, [&](size_t l, uint32_t head, uint32_t n) {
    Wanted wanted(n);
    oracle_key_filter(c.layers[l].Row(s, head, 0), n, s.head_dim,
                      &filters[l][begin + head * p.filter_head_stride],
                      wanted.values.data(), wanted.bounds.data());
    return wanted;
  });
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::Random random(kvevict::TestSeed("key_filter"));
  for (uint32_t turn = 0; turn < 66; ++turn) kvevict::Check(turn, random);
}
