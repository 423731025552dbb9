// Keys against the centers of queries in any layout, and rows of scores in units of
// their deviation, against double precision.
#include "cuda/kernels/query_centers.cu"

#include <cmath>
#include <limits>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/query_centers.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 150;
constexpr float kGuard = -77.0f;

struct Tables {
  std::vector<float> inv_freq;
  std::vector<std::vector<float>> centers;  // one per layer
  size_t stride;                            // from head to head
};

Tables DrawTables(uint32_t n_q_heads, uint32_t n_pairs, size_t n_layers,
                  Random& random) {
  Tables tables;
  tables.stride = 3 * n_pairs + random.Below(3);
  for (uint32_t f = 0; f < n_pairs; ++f) {
    tables.inv_freq.push_back(
        std::pow(500.0f, -static_cast<float>(f) / static_cast<float>(n_pairs)));
  }
  for (size_t l = 0; l < n_layers; ++l) {
    std::vector<float> centers(n_q_heads * tables.stride);
    for (uint32_t h = 0; h < n_q_heads; ++h) {
      float* const head = centers.data() + h * tables.stride;
      for (uint32_t f = 0; f < n_pairs; ++f) {
        head[f] = random.Gaussian();
        head[n_pairs + f] = random.Gaussian();
        head[2 * n_pairs + f] = std::hypot(head[f], head[n_pairs + f]) +
                                static_cast<float>(random.Below(9)) / 8.0f -
                                0.125f;
      }
    }
    tables.centers.push_back(centers);
  }
  return tables;
}

void Check(const PlaneShape& c, bool has_counts, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 3;
  const uint32_t group = 1 + random.Below(random.Below(4) == 0 ? 9 : 4);
  uint32_t n_pairs = c.head_dim / 2;
  if (n_pairs > 256 || random.Below(4) == 0) {
    n_pairs = 1 + random.Below(std::min(n_pairs, 256u));
  }
  const uint32_t n_q_heads = c.n_heads * group;
  std::vector<float> odd;
  if (turn % 4 == 0) {
    odd = {std::numeric_limits<float>::quiet_NaN(),
           std::numeric_limits<float>::infinity()};
  }
  std::vector<CacheLayer> layers;
  std::vector<std::vector<float>> rows;
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(kMost), random);
    layers.push_back(MakeCacheLayer(c, tokens, l, odd, random));
    rows.emplace_back(size_t{n_q_heads} * layers[l].n_tokens, kGuard);
  }
  const Tables tables = DrawTables(n_q_heads, n_pairs, n_layers, random);
  const uint32_t n_seen = kMost + random.Below(100000);
  std::vector<double> turns(2 * n_pairs);
  oracle_query_turns(tables.inv_freq.data(), n_pairs, n_seen, turns.data());

  cuda::CentersParams p = {};
  p.tokens = tokens.table();
  p.center_stride = tables.stride;
  p.group = group;
  p.n_sink = random.Below(5);
  p.n_pairs = n_pairs;
  p.is_interleaved = random.Below(2);
  p.keys = cuda::PairRows(c.cache_rows(), n_pairs, p.is_interleaved);
  for (uint32_t f = 0; f < n_pairs; ++f) {
    p.turns[f] = {static_cast<float>(turns[2 * f]),
                  static_cast<float>(turns[2 * f + 1])};
  }
  for (size_t l = 0; l < n_layers; ++l) {
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(tables.centers[l].data()),
                   Address(rows[l].data()),
                   layers[l].n_tokens,
                   tokens.FirstOf(l)};
  }
  const uint32_t block = cuda::CentersBlockRows(p.keys.lanes);
  Run(cuda::center_scores, {(kMost + block - 1) / block, c.n_heads, n_layers},
      cuda::kCentersThreads, p, Schedule(turn));
  Run(cuda::standardise_rows, {n_q_heads, n_layers, 1}, cuda::kCentersThreads,
      p, Schedule(turn));

  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t n = layers[l].n_tokens;
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      oracle_centers in = {};
      in.keys = layers[l].Row(c, h, 0);
      in.n_tokens = tokens.Of(l, h);
      in.head_dim = c.head_dim;
      in.n_sink = std::min(p.n_sink, in.n_tokens);
      in.n_seen = n_seen;
      in.group = group;
      in.n_pairs = n_pairs;
      in.is_interleaved = p.is_interleaved;
      in.inv_freq = tables.inv_freq.data();
      in.centers = tables.centers[l].data() + h * group * tables.stride;
      in.center_stride = tables.stride;
      std::vector<double> expected(size_t{group} * in.n_tokens);
      std::vector<double> bounds(expected.size());
      oracle_query_centers(&in, nullptr, expected.data(), bounds.data());
      for (uint32_t i = 0; i < group * n; ++i) {
        const double got = rows[l][size_t{h} * group * n + i];
        const uint32_t t = i % n;
        const size_t at = size_t{i / n} * in.n_tokens + t;
        const double want = t < in.n_tokens ? expected[at] : kGuard;
        const double most = t < in.n_tokens ? bounds[at] : 0.0;
        if (std::isnan(want) ? std::isnan(got) : std::abs(got - want) <= most) {
          continue;
        }
        Fail(
            "case %u, layer %zu, head %u, %u pairs of %u: score %u is %.9g, "
            "not %.9g to %.3g",
            turn, l, h, n_pairs, c.head_dim, i, got, want, most);
      }
    }
  }
}

void TestCenters() {
  constexpr uint32_t kDims[] = {2, 3, 16, 32, 40, 41, 64, 80, 128, 520};
  Random random(TestSeed("query_centers"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    const PlaneShape c = RandomPlane(DTypeOfTurn(turn),
                                     kDims[turn / kNDTypes % std::size(kDims)],
                                     1 + random.Below(2), kMost, random);
    Check(c, random.Below(2) == 0, random, turn);
  }
}

// Rows are longer than a block has threads, or have nothing finite.
void TestStandardising() {
  Random random(TestSeed("query_centers/standardising"));
  for (uint32_t n : {1u, 255u, 257u, 700u, 1500u}) {
    for (uint32_t n_sink : {0u, 4u}) {
      std::vector<float> rows(2 * n);
      for (float& v : rows) v = 1000.0f + 3.0f * random.Gaussian();
      for (uint32_t t = 0; t < n; ++t) rows[n + t] = NAN;
      const std::vector<float> raw = rows;
      cuda::CentersParams p = {};
      p.group = 2;
      p.n_sink = n_sink;
      p.layers[0].rows = Address(rows.data());
      p.layers[0].n_tokens = n;
      Run(cuda::standardise_rows, {2, 1, 1}, cuda::kCentersThreads, p,
          Schedule(n));
      double mean = 0.0, square = 0.0;
      for (uint32_t t = n_sink; t < n; ++t) mean += raw[t] / (n - n_sink);
      for (uint32_t t = n_sink; t < n; ++t) {
        square += (raw[t] - mean) * (raw[t] - mean) / (n - n_sink);
      }
      for (uint32_t t = 0; t < n; ++t) {
        const double want =
            t < n_sink ? 0.0
                       : (raw[t] - mean) / std::max(std::sqrt(square), 1e-6);
        // Distances from the mean err by the mean's own unit, and by sums of 12
        // elements.
        if (!(std::abs(rows[t] - want) <=
              40 * 0x1p-24 * (1 + std::abs(want)))) {
          Fail("%u scores: %u is %.9g, not %.9g", n, t,
               static_cast<double>(rows[t]), want);
        }
        const float beside = rows[n + t];
        if (t < n_sink ? beside != 0.0f : !std::isnan(beside)) {
          Fail("%u scores: %u is %.9g beside NaN", n, t,
               static_cast<double>(beside));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestCenters();
  kvevict::TestStandardising();
}
