#include "tests/cuda/window_attention/checks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/cuda/kernels/codes.h"

namespace kvevict::cuda {
namespace {

using Scores = std::vector<std::vector<float>>;

Scores ExpectOracle(const char* what, const AttentionVariant& variant,
                    const std::vector<AttentionLayer>& layers,
                    const AttentionLayout& layout,
                    const simt::Options& options) {
  Scores scores = RunAttention(variant, layers, layout, options);
  for (size_t i = 0; i < layers.size(); ++i) {
    Expect(what, CompareWithOracle(variant, layers[i], scores[i]).error);
  }
  return scores;
}

bool SameBytes(const Scores& a, const Scores& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * 4) != 0) {
      return false;
    }
  }
  return a.size() == b.size();
}

// Two splits, of three and two tiles, or more if some are staged before; a layer
// that ends in the first and has its row log-sum-exps; one of the window's length.
std::vector<AttentionLayer> ThreeLayers(const AttentionVariant& v,
                                        Random& random) {
  const uint32_t shorter = std::max(
      QueryRows(v), 2 * v.tile_keys + 2 + random.Below(v.tile_keys - 2));
  const uint32_t n_heads = v.ragged ? 2 : 1;
  const uint32_t n_more = (2 + StagedTiles(v)) * v.tile_keys;
  return {RandomLayer(v, n_heads, shorter + n_more, random),
          RandomLayer(v, n_heads, shorter, random),
          RandomLayer(v, n_heads, QueryRows(v), random)};
}

AttentionLayout RandomRing(const AttentionVariant& v, Random& random) {
  const bool is_ring = (v.rows & (kPart | kChunks)) == 0;
  const uint32_t n_spare = is_ring ? random.Below(3) : 0;
  return {.first_row = is_ring ? random.Below(v.window + n_spare) : 0,
          .n_spare = n_spare,
          .tiles_per_split = 3 + StagedTiles(v),
          .odd_layers_have_lse = true};
}

}  // namespace

void Expect(const char* what, const std::string& error) {
  if (error.empty()) return;
  std::fprintf(stderr, "%s: %s\n", what, error.c_str());
  std::exit(1);
}

void MatchesTheOracle(const AttentionVariant& v, bool one_warp_ahead,
                      Random& random) {
  const std::vector<AttentionLayer> layers = ThreeLayers(v, random);
  AttentionLayout layout = RandomRing(v, random);
  for (const bool gap_is_wide : {false, true}) {
    if (gap_is_wide && !MayCopy(v)) continue;
    layout.gap_is_wide = gap_is_wide;
    ExpectOracle("three layers", v, layers, layout,
                 {.seed = random.Next(), .one_warp_ahead = one_warp_ahead});
  }
}

void KeepsToTheErrorBound(const AttentionVariant& v, Random& random) {
  const uint32_t n_tokens = QueryRows(v) + 2 * v.tile_keys + random.Below(16);
  std::vector<AttentionLayer> layers = {OutlierLayer(v, 1, n_tokens, random)};
  const AttentionLayout layout = {.tiles_per_split = 1};
  std::vector<Scores> by_core;
  for (const rig::TensorCore& core : rig::kTensorCores) {
    if (v.use_mma) layers[0][0].dot_error = core.DotError(v.head_dim);
    const simt::Options options = {.seed = random.Next(), .tensor_core = core};
    by_core.push_back(RunAttention(v, layers, layout, options));
    const Comparison c =
        CompareWithOracle(v, layers[0], by_core.back().front());
    Expect("dot products that round", c.error);
    std::printf(
        "%s, head_dim %u, %s: %.1e relative error, %.0f%% of its bound\n",
        v.name, v.head_dim, v.use_mma ? core.name : "in f32", c.relative_error,
        100 * c.part_of_tolerance);
    if (!v.use_mma) return;
  }
  // Otherwise these data would prove nothing.
  if (SameBytes(by_core[0], by_core[1]) || SameBytes(by_core[1], by_core[2])) {
    Expect(v.name, "scores do not tell one kind of tensor core from another");
  }
}

void IsTheSameInAnyOrderOfThreads(const AttentionVariant& v, Random& random) {
  const std::vector<AttentionLayer> layers = ThreeLayers(v, random);
  AttentionLayout layout = RandomRing(v, random);
  layout.gap_is_wide = MayCopy(v);
  const Scores first =
      ExpectOracle("uniform order", v, layers, layout, {.seed = random.Next()});
  for (uint32_t order = 0; order < 4; ++order) {
    const simt::Options options = {.seed = random.Next(),
                                   .one_warp_ahead = order == 2};
    if (!SameBytes(RunAttention(v, layers, layout, options), first)) {
      Expect(v.name, "scores depend on the order of the threads");
    }
  }
}

void TakesAnyLayout(const AttentionVariant& v, Random& random) {
  for (RowOrder order :
       {RowOrder::kHeadMajor, RowOrder::kElementMajor, RowOrder::kReversed}) {
    const bool is_packed = v.use_mma || BlockElements(v.k_dtype) > 1;
    if (is_packed && order == RowOrder::kElementMajor) continue;
    AttentionLayout layout;
    layout.queries = order;
    const bool takes_keys = !v.few || order != RowOrder::kElementMajor;
    layout.keys = takes_keys ? order : RowOrder::kTokenMajor;
    layout.block_size = 1 + random.Below(90);
    layout.tiles_per_split = 1;
    layout.gap_is_wide = random.Below(2) == 0;
    ExpectOracle("another layout", v,
                 {RandomLayer(v, 2, QueryRows(v) + random.Below(80), random)},
                 layout, {.seed = random.Next()});
  }
}

void CheckVariants(const char* seed, std::span<const AttentionVariant> variants,
                   std::initializer_list<const char*> in_any_order,
                   std::initializer_list<const char*> by_formula) {
  Random random(TestSeed(seed));
  size_t n = 0;
  for (const AttentionVariant& v : variants) {
    MatchesTheOracle(v, n++ % 4 == 2, random);
    TakesAnyLayout(v, random);
    KeepsToTheErrorBound(v, random);
  }
  const auto find = [&](const char* name) -> const AttentionVariant& {
    for (const AttentionVariant& v : variants) {
      if (std::strcmp(v.name, name) == 0) return v;
    }
    std::fprintf(stderr, "no variant %s\n", name);
    std::exit(1);
  };
  for (const char* name : in_any_order) {
    IsTheSameInAnyOrderOfThreads(find(name), random);
  }
  for (const char* name : by_formula) KeepsToTheFormula(find(name));
}

}  // namespace kvevict::cuda
