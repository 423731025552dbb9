// Rows that go are merged into rows that stay in any layout, bit for bit as in
// core/kernels.
#include "cuda/kernels/merge.cu"

#include <algorithm>
#include <cstring>

#include "core/kernels/merge.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/cuda/kernels/near_keys.h"
#include "tests/kernels/key_cases.h"

namespace kvevict {
namespace {

// Keys, values and lists of a layer.
struct Layer {
  CacheLayer keys;
  CacheLayer values;
  std::vector<int32_t> keep;  // [n_lists, stride]
  uint32_t n_keep = 0;        // of any list, the most
};

void Launch(const cuda::MergeParams& p, uint32_t n_tokens, uint32_t n_layers,
            uint32_t turn) {
  const auto run = [&](const auto& kernel, uint32_t n, uint32_t per_block) {
    Run(kernel, {(n + per_block - 1) / per_block, p.n_kv_heads, n_layers},
        cuda::kMergeThreads, p, Schedule(turn));
  };
  run(cuda::merge_norms, n_tokens, cuda::kMergeThreads);
  // In parts, as launches with many products are.
  cuda::MergeParams part = p;
  for (; part.first_tile * cuda::kCosineTile < n_tokens; ++part.first_tile) {
    Run(cuda::merge_search, {1, p.n_kv_heads, n_layers}, cuda::kMergeThreads,
        part, Schedule(turn));
  }
  if (p.quantile != 0.0f) {
    Run(cuda::merge_cutoff, {p.n_kv_heads, n_layers, 1}, cuda::kMergeThreads, p,
        Schedule(turn));
  }
  run(cuda::merge_rows, n_tokens, cuda::kMergeRows);
}

// Computes on the CPU what becomes of a head's rows, in place.
void MergeHeadOnCpu(const PlaneShape& k, const PlaneShape& v,
                    const cuda::MergeParams& p, const int32_t* keep,
                    uint32_t n_keep, uint32_t n_tokens, uint32_t head,
                    Layer* layer) {
  MergeRowsArgs args;
  args.keys = HeadSource(k, layer->keys.memory, layer->keys.tables, head);
  args.key_dim = k.head_dim;
  if (v.head_dim > 0) {
    args.values = HeadSource(v, layer->values.memory, layer->keys.tables, head);
    args.value_dim = v.head_dim;
  }
  args.n_tokens = n_tokens;
  args.keep = keep;
  args.n_keep = n_keep;
  args.rule = p.rule == cuda::kMergeValues  ? MergeRule::kValues
              : p.rule == cuda::kMergePivot ? MergeRule::kPivot
                                            : MergeRule::kWeighted;
  args.threshold = p.threshold;
  args.quantile = p.quantile;
  std::vector<uint32_t> scratch(
      MergeScratchBytes(n_tokens, k.head_dim, v.head_dim) / 4 + 1);
  args.scratch = reinterpret_cast<uint8_t*>(scratch.data());
  MergeRows(SimdTargetAt(0), args);
}

void Check(const PlaneShape& k, bool has_counts, bool is_near, Random& random,
           uint32_t turn) {
  // Values have the keys' layout and another size.
  PlaneShape v = k;
  v.head_dim = turn % 7 == 1 ? 0 : 1 + random.Below(k.head_dim + 9);
  v.group = 0;
  v.gap = random.Below(3);
  v.transposed = random.Below(4) == 0 && v.gap == 0;
  const uint32_t n_layers = 1 + turn % 2;
  const uint32_t n_lists = random.Below(2) == 0 ? 1 : k.n_heads;
  ListTable tokens(k.n_heads, has_counts, 2);
  ListTable counts(n_lists, has_counts, 1);
  std::vector<Layer> layers;
  std::vector<float> odd;
  if (turn % 4 == 0) odd = {kNan, kInfinity, -kInfinity};
  uint32_t n_longest = 1;
  uint32_t stride = 0;
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t most = 1 + random.Below(k.n_most);
    tokens.AddLayer(1, most, random);
    n_longest = std::max(n_longest, most);
  }
  const uint32_t part = 1 + random.Below(4);
  for (size_t l = 0; l < n_layers; ++l) {
    Layer layer;
    layer.keys =
        MakeCacheLayer(k, tokens, l, odd, random, false, nullptr,
                       is_near ? MakeNear(k, random) : ChangeRow(nullptr));
    // These tables are dropped: values lie by the keys'.
    layer.values.tables = layer.keys.tables;
    if (v.head_dim > 0) {
      layer.values.memory = RandomRows(v, turn % 4 == 0 ? 900 : 0, 500, random);
    }
    uint32_t least = UINT32_MAX;
    for (uint32_t h = 0; h < k.n_heads; ++h) {
      least = std::min(least, tokens.Of(l, h));
    }
    std::vector<std::vector<int32_t>> lists(n_lists);
    const uint32_t n_alike = random.Below(least + 1);
    for (uint32_t list = 0; list < n_lists; ++list) {
      const uint32_t n = n_lists == 1 ? least : tokens.Of(l, list);
      for (uint32_t t = 0; t < n; ++t) {
        if (has_counts ? random.Below(part + 1) > 0
                       : lists[list].size() < n_alike &&
                             (random.Below(2) == 0 ||
                              n - t <= n_alike - lists[list].size())) {
          lists[list].push_back(static_cast<int32_t>(t));
        }
      }
      layer.n_keep =
          std::max(layer.n_keep, static_cast<uint32_t>(lists[list].size()));
    }
    stride = std::max(stride, layer.n_keep);
    for (const std::vector<int32_t>& list : lists) {
      counts.AddList(static_cast<uint32_t>(list.size()));
    }
    for (std::vector<int32_t>& list : lists) {
      list.resize(k.n_most, -1);
      layer.keep.insert(layer.keep.end(), list.begin(), list.end());
    }
    layers.push_back(std::move(layer));
  }
  cuda::MergeParams p = {};
  p.keys = k.cache_rows();
  if (v.head_dim > 0) p.values = v.cache_rows();
  p.tokens = tokens.table();
  p.counts = counts.table();
  p.n_kv_heads = k.n_heads;
  p.n_lists = n_lists;
  p.keep_stride = k.n_most;
  p.stride = n_longest;
  p.rule = v.head_dim == 0 ? cuda::kMergePivot + turn % 2
                           : cuda::kMergeValues + turn % 3;
  if (p.rule == cuda::kMergeValues) {
    p.threshold = random.Below(2) == 0 ? 0.0f : 0.5f;
    constexpr float kQuantiles[] = {0.0f, 0.25f, 0.6f, 0.95f};
    p.quantile = kQuantiles[random.Below(4)];
  }
  std::vector<float> rows(size_t{n_layers} * k.n_heads * 4 * p.stride, kNan);
  std::vector<float> cutoffs(size_t{n_layers} * k.n_heads, kNan);
  p.rows = Address(rows.data());
  p.cutoffs = Address(cutoffs.data());
  std::vector<Layer> expected = layers;
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {
        Address(layers[l].keys.memory.data()),
        v.head_dim == 0 ? 0 : Address(layers[l].values.memory.data()),
        Address(layers[l].keys.tables.data()),
        Address(layers[l].keep.data()),
        layers[l].keys.n_tokens,
        layers[l].n_keep,
        tokens.FirstOf(l),
        counts.FirstOf(l)};
    for (uint32_t h = 0; h < k.n_heads; ++h) {
      const uint32_t list = n_lists == 1 ? 0 : h;
      MergeHeadOnCpu(k, v, p, expected[l].keep.data() + list * size_t{k.n_most},
                     counts.Of(l, list), tokens.Of(l, h), h, &expected[l]);
    }
  }
  Launch(p, n_longest, n_layers, turn);
  for (size_t l = 0; l < n_layers; ++l) {
    if (layers[l].keys.memory != expected[l].keys.memory) {
      Fail("case %u: keys of layer %zu, dim %u, rule %u", turn, l, k.head_dim,
           p.rule);
    }
    if (layers[l].values.memory != expected[l].values.memory) {
      Fail("case %u: values of layer %zu, dim %u, rule %u, quantile %g", turn,
           l, v.head_dim, p.rule, p.quantile);
    }
  }
}

void TestMerge() {
  if (!HasFusedArithmetic(SimdTargetAt(0))) return;
  Random random(TestSeed("merge"));
  for (uint32_t turn = 0; turn < 176; ++turn) {
    // One tile or several.
    const uint32_t n_most = turn % 11 == 0         ? 400
                            : random.Below(3) == 0 ? 200
                                                   : 50;
    const bool is_near = turn % 2 == 1;
    Check(PlaneForNear(turn, n_most, is_near, random), random.Below(2) == 0,
          is_near, random, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestMerge(); }
