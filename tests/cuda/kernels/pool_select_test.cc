// Pooling and selection in one kernel give the lists of the CPU's kernels.
#include <cmath>

#include "core/kernels/pool1d.h"
#include "core/kernels/topk.h"
#include "cuda/kernels/pool_select.cu"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

// Weights as attention makes them, or others.
std::vector<float> RandomRow(size_t n, uint32_t kind, Random& random) {
  std::vector<float> row(n);
  for (float& f : row) {
    f = kind == kAny || (kind == kRare && random.Below(3) != 0)
            ? std::exp(3.0f * random.Gaussian())
            : DrawScore(kind, random);
  }
  return row;
}

struct Layer {
  uint32_t n_tokens;          // of any list, the most
  uint32_t n_keep;            // of any list, the most
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
  uint32_t n_unpooled;
  uint32_t first_slot;
};

// The layers of a launch, and how many slots each list has and keeps.
struct Layers {
  std::vector<Layer> all;
  ListTable tokens;
  ListTable keep;
};

cuda::SelectLists ListsOf(const Case& c, const Layers& layers) {
  return {layers.tokens.table(),
          layers.keep.table(),
          0,
          c.n_lists,
          c.higher_wins,
          c.n_sink,
          c.n_recent,
          0,
          c.first_slot,
          0};
}

cuda::SelectLayer ParamsOf(const Case& c, Layers& layers, size_t l) {
  Layer& layer = layers.all[l];
  return {Address(layer.scores.data() + c.lead),
          Address(layer.keep.data()),
          layer.n_tokens,
          layer.n_keep,
          layers.tokens.FirstOf(l),
          layers.keep.FirstOf(l)};
}

std::vector<int32_t> OnHost(const Case& c, const Layers& layers, size_t l) {
  const Layer& layer = layers.all[l];
  std::vector<int32_t> all(size_t{c.n_lists} * layer.n_keep, -1);
  for (uint32_t list = 0; list < c.n_lists; ++list) {
    const uint32_t n = layers.tokens.Of(l, list);
    const uint32_t n_pooled = n - c.n_unpooled;
    const uint32_t n_keep = layers.keep.Of(l, list);
    const float* const row =
        layer.scores.data() + c.lead + size_t{list} * layer.n_tokens;
    std::vector<float> pooled(row, row + n);
    if (c.kernel > 1) {
      Pool1d(SimdTargetAt(0), row, n_pooled, c.kernel,
             c.is_max ? PoolKind::kMax : PoolKind::kAvg,
             c.edge_shrinks ? PoolEdge::kShrink : PoolEdge::kPad,
             pooled.data());
    }
    std::fill(pooled.begin() + n_pooled, pooled.end(), kInfinity);
    std::vector<uint32_t> keys(n);
    ScoresToKeys(SimdTargetAt(0), pooled.data(), n, keys.data());
    for (uint32_t i = 0; i < n; ++i) {
      if (i < c.n_sink || i >= n - c.n_recent) keys[i] = kForcedKey;
    }
    int32_t* const keep = all.data() + size_t{list} * layer.n_keep;
    SelectTopK(SimdTargetAt(0), keys.data(), n, n_keep,
               c.higher_wins ? Tie::kHigher : Tie::kLower, keep);
    for (uint32_t i = 0; i < n_keep; ++i) {
      keep[i] += static_cast<int32_t>(c.first_slot);
    }
  }
  return all;
}

void Check(const Case& c, Layers layers, uint32_t turn) {
  cuda::PoolSelectParams p = {};
  p.lists = ListsOf(c, layers);
  p.n_unpooled = c.n_unpooled;
  p.kernel = c.kernel;
  p.is_max = c.is_max;
  p.edge_shrinks = c.edge_shrinks;
  uint32_t longest = 0;
  const size_t n_layers = layers.all.size();
  for (size_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers.all[l];
    layer.keep.assign(size_t{c.n_lists} * layer.n_keep, -1);
    longest = std::max(longest, layer.n_tokens);
    p.layers[l] = ParamsOf(c, layers, l);
  }
  const Layers before = layers;
  const std::string error = simt::Launch(
      cuda::pool_select, {c.n_lists, static_cast<uint32_t>(n_layers)},
      {cuda::kSelectThreads}, cuda::PoolSelectBytes(longest), p,
      Schedule(turn));
  if (!error.empty()) Fail("%s", error.c_str());
  for (size_t l = 0; l < n_layers; ++l) {
    ExpectSame(layers.all[l].keep, OnHost(c, before, l), "pool_select", turn);
  }
}

// Tiles have 2,048 scores.
void TestLists() {
  constexpr uint32_t kSizes[] = {1,    2,    5,    127,  129, 600,
                                 2047, 2048, 2051, 4100, 4400};
  constexpr uint32_t kKernels[] = {1, 3, 7, 63, 513};
  Random random(TestSeed("pool_select"));
  for (uint32_t turn = 0; turn < 70; ++turn) {
    Case c = {};
    c.n_lists = 1 + random.Below(2);
    c.lead = random.Below(4);
    c.kernel = kKernels[turn % std::size(kKernels)];
    c.is_max = random.Below(2) != 0;
    c.edge_shrinks = random.Below(2) != 0;
    c.higher_wins = random.Below(2) != 0;
    if (random.Below(2) != 0) c.n_sink = random.Below(6);
    if (random.Below(2) != 0) c.n_recent = random.Below(40);
    if (random.Below(2) != 0) c.n_unpooled = random.Below(70);
    if (random.Below(3) == 0) c.first_slot = random.Below(5000);
    const bool is_ragged = turn / 2 % 2 == 0;
    Layers layers = {{},
                     ListTable(c.n_lists, is_ragged, 2),
                     ListTable(c.n_lists, is_ragged, 1)};
    for (size_t l = 0; l < 1 + turn % 2; ++l) {
      const uint32_t forced = c.n_sink + c.n_recent;
      const uint32_t least = std::max(forced, c.n_unpooled);
      layers.tokens.AddLayer(
          least, std::max(kSizes[random.Below(std::size(kSizes))], least),
          random);
      Layer layer = {};
      for (uint32_t list = 0; list < c.n_lists; ++list) {
        const uint32_t n = layers.tokens.Of(l, list);
        const uint32_t choices[] = {forced, n,
                                    forced + random.Below(n - forced + 1),
                                    n == 0 ? 0 : std::max(forced, n - 1)};
        const uint32_t n_keep = !is_ragged && list > 0
                                    ? layers.keep.Of(l, 0)
                                    : choices[random.Below(4)];
        layers.keep.AddList(n_keep);
        layer.n_tokens = std::max(layer.n_tokens, n);
        layer.n_keep = std::max(layer.n_keep, n_keep);
      }
      layer.scores = RandomRow(c.lead + size_t{c.n_lists} * layer.n_tokens,
                               turn % kScoreKinds, random);
      layers.all.push_back(layer);
    }
    Check(c, layers, turn);
  }
}

// Each GPU fits lists up to a length: two lists at a time, with the system's KB each.
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
  // Three lists of 16K: an 8B model has 288 for 132 multiprocessors.
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
