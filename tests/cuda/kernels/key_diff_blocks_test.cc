// Keys against the mean direction of those held so far, block by block in any
// layout, against double precision.
#include "cuda/kernels/key_diff_blocks.cu"

#include <cmath>
#include <limits>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// False if f32 may choose otherwise; then only clear choices are compared.
bool CheckHead(const PlaneShape& c, const CacheLayer& layer, uint32_t head,
               uint32_t n_tokens, uint32_t n_keep,
               const cuda::KeyDiffBlocksParams& p, uint32_t turn) {
  for (uint32_t t = n_tokens; t < layer.n_tokens; ++t) {
    const float score = layer.scores[size_t{head} * layer.n_tokens + t];
    if (score != 77.0f) Fail("case %u: score %u is %g", turn, t, score);
  }
  if (n_tokens == 0) return true;
  std::vector<double> expected(n_tokens), bounds(n_tokens);
  const double gap = oracle_key_diff_blocks(
      layer.Row(c, head, 0), n_tokens, c.head_dim, std::max(n_keep, 1u),
      p.block, p.higher_wins, expected.data(), bounds.data());
  if (!(gap > 0.0)) return false;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const double score = layer.scores[size_t{head} * layer.n_tokens + t];
    const bool is_right = std::isnan(expected[t])
                              ? std::isnan(score)
                              : std::abs(score - expected[t]) <= bounds[t];
    if (is_right) continue;
    Fail("case %u, dim %u, %u by %u, token %u of %u: %.9g, not %.9g to %.3g",
         turn, c.head_dim, n_keep, p.block, t, n_tokens, score, expected[t],
         bounds[t]);
  }
  return true;
}

struct Tally {
  uint32_t n_told = 0;
  uint32_t n_heads = 0;
};

void Check(const PlaneShape& c, bool has_counts, Random& random, uint32_t turn,
           Tally* tally) {
  ListTable tokens(c.n_heads, has_counts, 2);
  ListTable keep(c.n_heads, has_counts, 1);
  const uint32_t n_layers = 1 + turn % 3;
  uint32_t n_longest = 0;
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t most = 1 + random.Below(c.n_most);
    tokens.AddLayer(1, most, random);
    keep.AddLayer(0, 1 + random.Below(most + 3), random);
    n_longest = std::max(n_longest, most);
  }
  std::vector<float> odd;
  if (turn % 4 == 0) odd = {kNan, kInfinity, -kInfinity};
  std::vector<CacheLayer> layers;
  for (size_t l = 0; l < n_layers; ++l) {
    layers.push_back(MakeCacheLayer(c, tokens, l, odd, random, true));
  }
  cuda::KeyDiffBlocksParams p = {};
  p.keys = c.cache_rows();
  p.tokens = tokens.table();
  p.keep = keep.table();
  p.n_kv_heads = c.n_heads;
  p.n_most = n_longest;
  p.block = 1 + random.Below(c.n_most / 4 + 1);
  p.higher_wins = random.Below(2);
  const size_t n_bytes =
      cuda::LayOutKeyDiffBlocks(c.head_dim, n_longest).n_bytes;
  std::vector<uint64_t> scratch(n_bytes * n_layers * c.n_heads / 8 + 2,
                                ~uint64_t{0});
  p.scratch = (Address(scratch.data()) + 15) / 16 * 16;
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(layers[l].scores.data()),
                   layers[l].n_tokens,
                   tokens.FirstOf(l),
                   keep.Of(l, 0),
                   keep.FirstOf(l)};
  }
  Run(cuda::key_diff_blocks, {c.n_heads, n_layers}, cuda::kSelectThreads, p,
      Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      ++tally->n_heads;
      tally->n_told +=
          CheckHead(c, layers[l], h, tokens.Of(l, h), keep.Of(l, h), p, turn);
    }
  }
}

void TestBlocks() {
  Random random(TestSeed("key_diff_blocks"));
  Tally tally;
  for (uint32_t turn = 0; turn < 66; ++turn) {
    const uint32_t n_most = turn % 22 == 0 ? 700 : turn % 3 == 0 ? 200 : 60;
    const PlaneShape c = PlaneOfTurn(turn, n_most, random);
    Check(c, random.Below(2) == 0, random, turn, &tally);
  }
  // Keys are eighths, so some heads have two nearly equal ones.
  std::printf("%u of %u heads are told apart\n", tally.n_told, tally.n_heads);
  if (tally.n_told * 2 < tally.n_heads) Fail("too few heads are told apart");
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestBlocks(); }
