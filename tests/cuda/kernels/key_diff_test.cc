// Keys against their mean direction in any layout, against double precision.
#include "cuda/kernels/key_diff.cu"

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

// Keys that are not finite add nothing to the mean, and score NaN.
Wanted ScoresOf(const float* keys, uint32_t n, uint32_t dim) {
  std::vector<float> good;
  std::vector<uint32_t> places;
  for (uint32_t t = 0; t < n; ++t, keys += dim) {
    if (!std::all_of(keys, keys + dim,
                     [](float v) { return std::isfinite(v); }))
      continue;
    good.insert(good.end(), keys, keys + dim);
    places.push_back(t);
  }
  Wanted of_good(places.size()), wanted(n);
  oracle_key_diff(good.data(), static_cast<uint32_t>(places.size()), dim,
                  of_good.values.data(), of_good.bounds.data());
  std::fill(wanted.values.begin(), wanted.values.end(), kNan);
  for (size_t i = 0; i < places.size(); ++i) {
    wanted.values[places[i]] = of_good.values[i];
    wanted.bounds[places[i]] = of_good.bounds[i];
  }
  return wanted;
}

void Check(const PlaneShape& s, uint32_t turn, Random& random) {
  CacheLaunch c(s, 1 + turn % 3, 1, random);
  c.Draw(turn, random);
  auto p = c.Lend<cuda::KeyDiffParams>();
  p.n_chunks = cuda::KeyDiffChunks(c.n_longest());
  std::vector<float> sums(size_t{c.n_all_heads()} * p.n_chunks * s.head_dim,
                          kNan);
  p.sums = Address(sums.data());
  const auto run = [&](const auto& kernel, uint32_t n, uint32_t per_block) {
    Run(kernel, c.Grid(n, per_block), cuda::kDiffThreads, p, Schedule(turn));
  };
  run(cuda::key_sums, p.n_chunks, 1);
  if (p.n_chunks > 1) run(cuda::add_key_sums, s.head_dim, cuda::kDiffColumns);
  run(cuda::key_diffs, c.n_longest(), cuda::KeyDiffBlockRows(p.keys.lanes));
  c.Compare(turn, [&](size_t l, uint32_t head, uint32_t n) {
    return ScoresOf(c.layers[l].Row(s, head, 0), n, s.head_dim);
  });
}

}  // namespace
}  // namespace kvevict

int main() {
  using namespace kvevict;  // NOLINT
  Random random(TestSeed("key_diff"));
  for (uint32_t turn = 0; turn < 66; ++turn) {
    // There is one chunk, or up to more than there are slices.
    const uint32_t n_most = turn % 22 == 0 ? 2600 : turn % 3 == 0 ? 600 : 100;
    Check(PlaneOfTurn(turn, n_most, random), turn, random);
  }
}
