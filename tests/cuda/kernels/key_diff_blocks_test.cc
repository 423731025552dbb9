// Keys against the mean direction of those held so far, block by block in any
// layout, against double precision.
#include "cuda/kernels/key_diff_blocks.cu"

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

uint32_t n_told = 0;
uint32_t n_heads = 0;

void Check(const PlaneShape& s, uint32_t turn, Random& random) {
  CacheLaunch c(s, 1 + turn % 3, 1, random);
  c.Draw(turn, random, true);
  ListTable keep(s.n_heads, random.Below(2) == 0, 1);
  auto p = c.Lend<cuda::KeyDiffBlocksParams>();
  p.n_most = c.n_longest();
  p.block = 1 + random.Below(s.n_most / 4 + 1);
  p.higher_wins = random.Below(2);
  const size_t n_bytes =
      cuda::LayOutKeyDiffBlocks(s.head_dim, p.n_most).n_bytes;
  std::vector<uint64_t> scratch(n_bytes * c.n_all_heads() / 8 + 2,
                                ~uint64_t{0});
  p.scratch = (Address(scratch.data()) + 15) / 16 * 16;
  for (const CacheLayer& layer : c.layers) {
    keep.AddLayer(0, 1 + random.Below(layer.n_tokens + 3), random);
  }
  p.keep = keep.table();
  for (size_t l = 0; l < c.layers.size(); ++l) {
    p.layers[l].n_keep = keep.Most(l);
    p.layers[l].first_keep_count = keep.FirstOf(l);
  }
  Run(cuda::key_diff_blocks, {s.n_heads, c.n_layers()}, cuda::kSelectThreads, p,
      Schedule(turn));
  c.Compare(turn, [&](size_t l, uint32_t head, uint32_t n) {
    Wanted wanted(n);
    const double gap = oracle_key_diff_blocks(
        c.layers[l].Row(s, head, 0), n, s.head_dim,
        std::max(keep.Of(l, head), 1u), p.block, p.higher_wins,
        wanted.values.data(), wanted.bounds.data());
    ++n_heads;
    // If f32 may choose otherwise, nothing is compared.
    if (!(gap > 0.0)) return Wanted();
    ++n_told;
    return wanted;
  });
}

}  // namespace
}  // namespace kvevict

int main() {
  using namespace kvevict;  // NOLINT
  Random random(TestSeed("key_diff_blocks"));
  for (uint32_t turn = 0; turn < 66; ++turn) {
    const uint32_t n_most = turn % 22 == 0 ? 700 : turn % 3 == 0 ? 200 : 60;
    Check(PlaneOfTurn(turn, n_most, random), turn, random);
  }
  // Keys are eighths, so some heads have two nearly equal ones.
  std::printf("%u of %u heads are told apart\n", n_told, n_heads);
  if (n_told * 2 < n_heads) Fail("too few heads are told apart");
}
