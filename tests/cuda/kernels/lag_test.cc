// Ranks against later tokens in any layout have the bits of core/kernels/lag.
#include "core/kernels/lag.h"

#include <cmath>

#include "cuda/kernels/lag.cu"
#include "tests/cuda/kernels/cache_planes.h"
#include "tests/cuda/kernels/counts.h"

namespace kvevict {
namespace {

struct Case {
  PlaneShape keys;
  PlaneShape values;
  uint32_t n_sink;
  uint32_t partition;
  bool has_counts;
  uint32_t rare;  // see RandomRows()
  uint32_t n_numbers;
  bool ranks;
  uint32_t run;
  uint32_t most_bytes;  // of shared memory
};

struct Layer {
  uint32_t n_tokens;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
  std::vector<int32_t> tables;
  std::vector<float> scores;
};

uint32_t n_kept = 0;  // planes whose rows were kept in shared memory

constexpr float kUntouched = 77.0f;
constexpr float kLog2ESquared = 2.08136898f;

cuda::LagRows RowsOf(const PlaneShape& s) {
  return {s.cache_rows(), 1.0f / static_cast<float>(s.head_dim),
          s.head_dim == 1 ? 0.0f
                          : kLog2ESquared / static_cast<float>(s.head_dim - 1),
          0, 0};
}

std::vector<float> OnCpu(const Case& c, const Layer& layer, uint32_t head,
                         uint32_t n_tokens) {
  std::vector<float> scores(n_tokens);
  std::vector<uint64_t> scratch(
      LagScratchBytes(c.keys.head_dim, c.values.head_dim, c.partition) / 8 + 1);
  ComputeLagScores(
      SimdTargetAt(0),
      {HeadSource(c.keys, layer.keys, layer.tables, head),
       HeadSource(c.values, layer.values, layer.tables, head), c.keys.head_dim,
       c.values.head_dim, n_tokens, c.n_sink, c.partition, c.ranks,
       reinterpret_cast<uint8_t*>(scratch.data()), scores.data()});
  return scores;
}

void Check(const Case& c, uint32_t n_layers, Random& random, uint32_t turn) {
  const uint32_t n_heads = c.keys.n_heads;
  ListTable tokens(n_heads, c.has_counts, 2);
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(c.keys.n_most), random);
  }
  std::vector<Layer> layers(n_layers);
  cuda::LagParams p = {};
  p.keys = RowsOf(c.keys);
  p.values = RowsOf(c.values);
  p.tokens = tokens.table();
  p.n_layers = n_layers;
  p.n_kv_heads = n_heads;
  p.n_sink = c.n_sink;
  p.partition = c.partition;
  p.rank_scale = c.ranks ? 1.0f / static_cast<float>(c.partition) : 0.0f;
  for (size_t l = 0; l < n_layers; ++l) {
    Layer& layer = layers[l];
    for (uint32_t h = 0; h < n_heads; ++h) {
      layer.n_tokens = std::max(layer.n_tokens, tokens.Of(l, h));
    }
    layer.keys = RandomRows(c.keys, c.rare, c.n_numbers, random);
    layer.values = RandomRows(c.values, c.rare, c.n_numbers, random);
    layer.tables = RandomTables(c.keys, random);
    layer.scores.assign(size_t{n_heads} * layer.n_tokens, kUntouched);
    p.scratch_stride = std::max(p.scratch_stride, layer.n_tokens);
    p.layers[l] = {Address(layer.keys.data()),
                   Address(layer.values.data()),
                   Address(layer.tables.data()),
                   Address(layer.scores.data()),
                   layer.n_tokens,
                   tokens.FirstOf(l)};
  }
  std::vector<float> scratch(
      size_t{cuda::LagScratchRows(c.keys.head_dim, c.values.head_dim)} *
      n_layers * n_heads * p.scratch_stride);
  p.scratch = Address(scratch.data());
  const uint32_t n_partitions =
      cuda::LagPartitions(p.scratch_stride, c.n_sink, c.partition);
  if (n_partitions > 1) {
    uint32_t shared_bytes = 0;
    for (cuda::LagRows* const rows : {&p.keys, &p.values}) {
      const uint32_t bytes =
          cuda::LagKeptBytes(rows->rows, c.partition, c.most_bytes);
      rows->is_kept = bytes != 0 ? 1 : 0;
      n_kept += rows->is_kept;
      shared_bytes = std::max(shared_bytes, bytes);
    }
    p.run = c.run;
    const uint32_t n_runs = (n_partitions - 1 + c.run - 1) / c.run;
    const std::string error =
        simt::Launch(cuda::lag_spreads, {n_runs, n_heads, 2 * n_layers},
                     {cuda::kLagThreads}, shared_bytes, p, Schedule(turn));
    if (!error.empty()) Fail("case %u: %s", turn, error.c_str());
  }
  Run(cuda::lag_ranks, {std::max(2u, n_partitions) - 1, n_heads, n_layers},
      cuda::kLagRankThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    const Layer& layer = layers[l];
    for (uint32_t h = 0; h < n_heads; ++h) {
      const std::vector<float> expected = OnCpu(c, layer, h, tokens.Of(l, h));
      for (uint32_t t = 0; t < layer.n_tokens; ++t) {
        const float wanted = t < expected.size() ? expected[t] : kUntouched;
        const float score = layer.scores[size_t{h} * layer.n_tokens + t];
        if (BitsOf(score) == BitsOf(wanted)) continue;
        Fail("case %u, layer %zu, head %u: score %u of %zu is %.9g, not %.9g",
             turn, l, h, t, expected.size(), static_cast<double>(score),
             static_cast<double>(wanted));
      }
    }
  }
}

// Rows of floats with loads of 16 bytes.
PlaneShape RowsToKeep(uint32_t n, uint32_t n_heads, uint32_t n_most,
                      Random& random) {
  constexpr uint32_t kDTypes[] = {cuda::kBF16, cuda::kF32, cuda::kF16};
  constexpr uint32_t kDims[] = {128, 8, 64, 80, 136, 256, 304};
  PlaneShape s = RandomPlane(kDTypes[n], kDims[random.Below(std::size(kDims))],
                             n_heads, n_most, random);
  s.gap = 0;
  s.transposed = false;
  return s;
}

void TestScores() {
  constexpr uint32_t kDims[] = {1, 3, 8, 16, 40, 41, 64, 80, 128, 129, 300};
  Random random(TestSeed("lag"));
  for (uint32_t turn = 0; turn < 180; ++turn) {
    Case c = {};
    c.partition = 2 + random.Below(turn % 4 == 0 ? 60 : 12);
    c.n_sink = random.Below(5);
    // A partition has more than kLagTile keys.
    if (turn % 30 == 7) c.partition = 600;
    const uint32_t n_most =
        c.partition * (2 + random.Below(3)) + c.n_sink + random.Below(5);
    const uint32_t n_heads = 1 + random.Below(2);
    const bool is_long = c.partition > 100;
    c.keys =
        RandomPlane(DTypeOfTurn(turn),
                    is_long ? 3 : kDims[turn / kNDTypes % std::size(kDims)],
                    n_heads, n_most, random);
    c.values = RandomPlane(AnyDType(random),
                           is_long ? 5 : kDims[random.Below(std::size(kDims))],
                           n_heads, n_most, random);
    // Each dtype has every schedule.
    const bool is_kept = turn % 7 < 3;
    if (is_kept) {
      c.keys = RowsToKeep(turn % 7, n_heads, n_most, random);
      c.values = RowsToKeep(random.Below(3), n_heads, n_most, random);
    }
    c.values.block_size = c.keys.block_size;
    c.values.table_heads = c.keys.table_heads;
    c.has_counts = random.Below(2) == 0;
    if (random.Below(4) == 0) c.rare = 300;
    c.n_numbers = turn % 5 == 0 ? 1 + random.Below(3) : 511;
    c.ranks = turn % 6 != 5;
    c.run = (is_kept ? 2 : 1) + random.Below(3);
    // Some partitions do not fit.
    c.most_bytes = turn % 5 == 1 ? 2048 : cuda::MostLagBytes(80);
    Check(c, 1 + turn % 3, random, turn);
  }
}

bool CpuHasFusedMultiplyAdd() {
  const char* const name = SimdTargetAt(0).name;
  return std::strncmp(name, "SS", 2) != 0 && std::strncmp(name, "EMU", 3) != 0;
}

}  // namespace
}  // namespace kvevict

int main() {
  if (!kvevict::CpuHasFusedMultiplyAdd()) return 77;
  kvevict::TestScores();
  if (kvevict::n_kept == 0) kvevict::Fail("no rows were kept");
}
