// Pooling and selection in one go: the lists of the CPU's kernels, and of
// pool_rows and select_topk one after the other.
#include <bit>
#include <cmath>
#include <limits>

#include "core/kernels/pool1d.h"
#include "core/kernels/topk.h"
#include "cuda/kernels/pool1d.cu"
#include "cuda/kernels/pool_select.cu"
#include "cuda/kernels/topk.cu"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {
namespace {

enum Kind { kWeights, kFew, kEqual, kSpecial, kKinds };

std::vector<float> RandomRow(size_t n, uint32_t kind, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecials[] = {std::numeric_limits<float>::quiet_NaN(),
                                 kInfinity,
                                 -kInfinity,
                                 0.0f,
                                 -0.0f,
                                 std::numeric_limits<float>::denorm_min()};
  std::vector<float> row(n);
  for (float& f : row) {
    f = std::exp(3.0f * random.Gaussian());
    if (kind == kFew) f = static_cast<float>(random.Below(3));
    if (kind == kEqual) f = 0.25f;
    if (kind == kSpecial && random.Below(3) == 0)
      f = kSpecials[random.Below(6)];
  }
  return row;
}

struct Layer {
  uint32_t n_tokens;
  uint32_t n_pooled;
  uint32_t n_keep;
  std::vector<float> scores;  // `lead`, then a row per list
  std::vector<int32_t> keep;
};

struct Case {
  uint32_t n_lists;
  uint32_t lead;  // words before the first row
  uint32_t kernel;
  bool is_max;
  bool edge_shrinks;
  bool higher_wins;
  uint32_t n_sink;
  uint32_t n_recent;
};

std::vector<int32_t> OnHost(const Case& c, const Layer& layer) {
  std::vector<int32_t> all;
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    const float* const row =
        layer.scores.data() + c.lead + size_t{list} * layer.n_tokens;
    std::vector<float> pooled(row, row + layer.n_tokens);
    if (c.kernel > 1) {
      Pool1d(SimdTargetAt(0), row, layer.n_pooled, c.kernel,
             c.is_max ? Pool::kMax : Pool::kAvg,
             c.edge_shrinks ? PoolEdge::kShrink : PoolEdge::kPad,
             pooled.data());
    }
    std::fill(pooled.begin() + layer.n_pooled, pooled.end(),
              std::numeric_limits<float>::infinity());
    std::vector<uint32_t> keys(layer.n_tokens);
    ScoresToKeys(SimdTargetAt(0), pooled.data(), layer.n_tokens, keys.data());
    for (uint32_t i = 0; i < layer.n_tokens; ++i) {
      if (i < c.n_sink || i >= layer.n_tokens - c.n_recent) {
        keys[i] = kForcedKey;
      }
    }
    std::vector<int32_t> keep(layer.n_keep);
    SelectTopK(SimdTargetAt(0), keys.data(), layer.n_tokens, layer.n_keep,
               c.higher_wins ? Tie::kHigher : Tie::kLower, keep.data());
    all.insert(all.end(), keep.begin(), keep.end());
  }
  return all;
}

// In two steps, on the same scores.
void PoolThenSelect(const Case& c, std::vector<Layer>& layers, uint32_t turn) {
  const auto n_layers = static_cast<uint32_t>(layers.size());
  cuda::PoolParams pool = {};
  pool.n_rows = c.n_lists;
  pool.kernel = c.kernel;
  pool.is_max = c.is_max;
  pool.edge_shrinks = c.edge_shrinks;
  cuda::SelectParams select = {};
  select.n_lists = c.n_lists;
  select.higher_wins = c.higher_wins;
  select.n_sink = c.n_sink;
  select.n_recent = c.n_recent;
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    const uint64_t scores = Address(layer.scores.data() + c.lead);
    pool.layers[l] = {scores, layer.n_tokens, layer.n_pooled};
    select.layers[l] = {scores, Address(layer.keep.data()), layer.n_tokens,
                        layer.n_keep};
  }
  Run(cuda::pool_rows, {c.n_lists, n_layers}, cuda::kPoolThreads, pool,
      Schedule(turn));
  Run(cuda::select_topk, {c.n_lists, n_layers}, cuda::kSelectThreads, select,
      Schedule(turn));
}

void Check(const Case& c, std::vector<Layer> layers, uint32_t turn) {
  cuda::PoolSelectParams p = {};
  p.n_lists = c.n_lists;
  p.higher_wins = c.higher_wins;
  p.n_sink = c.n_sink;
  p.n_recent = c.n_recent;
  p.kernel = c.kernel;
  p.is_max = c.is_max;
  p.edge_shrinks = c.edge_shrinks;
  uint32_t longest = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    layer.keep.assign(size_t{c.n_lists} * layer.n_keep, -1);
    longest = std::max(longest, layer.n_tokens);
    p.layers[l] = {Address(layer.scores.data() + c.lead),
                   Address(layer.keep.data()),
                   layer.n_tokens,
                   layer.n_pooled,
                   layer.n_keep,
                   0};
  }
  const std::vector<Layer> before = layers;
  const std::string error = simt::Launch(
      cuda::pool_select, {c.n_lists, static_cast<uint32_t>(layers.size())},
      {cuda::kSelectThreads}, cuda::PoolSelectBytes(longest), p,
      Schedule(turn));
  if (!error.empty()) Fail("%s", error.c_str());
  for (size_t l = 0; l < layers.size(); ++l) {
    ExpectSame(layers[l].keep, OnHost(c, before[l]), "pool_select", turn);
  }
  std::vector<Layer> by_two = before;
  PoolThenSelect(c, by_two, turn);
  for (size_t l = 0; l < layers.size(); ++l) {
    ExpectSame(layers[l].keep, by_two[l].keep, "pool_rows, select_topk", turn);
  }
}

// Tiles have 2,048 scores.
void TestLists() {
  constexpr uint32_t kSizes[] = {1,   2,    5,    127,  129,
                                 600, 2047, 2048, 2051, 4100};
  constexpr uint32_t kKernels[] = {1, 3, 7, 63, 513};
  Random random(TestSeed("pool_select"));
  for (uint32_t turn = 0; turn < Turns(70); ++turn) {
    Case c = {};
    c.n_lists = 1 + random.Below(2);
    c.lead = random.Below(4);
    c.kernel = kKernels[turn % std::size(kKernels)];
    c.is_max = random.Below(2) != 0;
    c.edge_shrinks = random.Below(2) != 0;
    c.higher_wins = random.Below(2) != 0;
    if (random.Below(2) != 0) c.n_sink = random.Below(6);
    if (random.Below(2) != 0) c.n_recent = random.Below(40);
    std::vector<Layer> layers;
    while (layers.size() < 1 + turn % 2) {
      const uint32_t forced = c.n_sink + c.n_recent;
      const uint32_t n =
          std::max(kSizes[random.Below(std::size(kSizes))], forced);
      const uint32_t n_pooled =
          random.Below(2) != 0 ? n : n - random.Below(std::min(n, 70u) + 1);
      const uint32_t choices[] = {forced, n,
                                  forced + random.Below(n - forced + 1),
                                  n == 0 ? 0 : std::max(forced, n - 1)};
      layers.push_back(
          {n,
           n_pooled,
           choices[random.Below(4)],
           RandomRow(c.lead + size_t{c.n_lists} * n, turn % kKinds, random),
           {}});
    }
    Check(c, layers, turn);
  }
}

// What fits on which GPU: two lists at a time, the system's KB each included.
void TestBounds() {
  constexpr struct {
    uint32_t sm, kilobytes;
  } kShared[] = {{70, 96},  {75, 64},   {80, 164},  {86, 100},  {89, 100},
                 {90, 228}, {100, 228}, {103, 228}, {120, 100}, {121, 100}};
  for (const auto& [sm, kilobytes] : kShared) {
    const uint32_t n = cuda::MostPoolSelectTokens(sm);
    const uint32_t bytes = cuda::PoolSelectBytes(n);
    if (bytes > cuda::MostPoolSelectBytes(sm) ||
        2 * (bytes + 1024) > kilobytes * 1024) {
      Fail("sm_%u: %u tokens take %u bytes", sm, n, bytes);
    }
  }
  // Three lists of 16K, as an 8B model's 288 on 132 multiprocessors want.
  if (3 * (cuda::PoolSelectBytes(16384) + 1024) > 228 * 1024) {
    Fail("three lists of 16K do not fit");
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestBounds();
  kvevict::TestLists();
}
