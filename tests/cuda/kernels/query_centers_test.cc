// Keys against the centers of queries in any layout, and rows of scores in units of
// their deviation, against double precision.
#include "cuda/kernels/query_centers.cu"

#include <cmath>

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

void Check(const PlaneShape& s, uint32_t turn, Random& random) {
  CacheLaunch c(s, 1 + turn % 3, 0, random);
  c.Draw(turn, random);
  const uint32_t group = 1 + random.Below(random.Below(4) == 0 ? 9 : 4);
  uint32_t n_pairs = s.head_dim / 2;
  if (n_pairs > 256 || random.Below(4) == 0) {
    n_pairs = 1 + random.Below(std::min(n_pairs, 256u));
  }
  const uint32_t n_q_heads = s.n_heads * group;
  const Tables tables = DrawTables(n_q_heads, n_pairs, c.n_layers(), random);
  const uint32_t n_seen = kMost + random.Below(100000);
  std::vector<double> turns(2 * n_pairs);
  oracle_query_turns(tables.inv_freq.data(), n_pairs, n_seen, turns.data());

  auto p = c.Lend<cuda::CentersParams>();
  p.center_stride = tables.stride;
  p.group = group;
  p.n_sink = random.Below(5);
  p.n_pairs = n_pairs;
  p.is_interleaved = random.Below(2);
  p.keys = cuda::PairRows(s.cache_rows(), n_pairs, p.is_interleaved);
  for (uint32_t f = 0; f < n_pairs; ++f) {
    p.turns[f] = {static_cast<float>(turns[2 * f]),
                  static_cast<float>(turns[2 * f + 1])};
  }
  std::vector<std::vector<float>> rows;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    rows.emplace_back(size_t{n_q_heads} * c.layers[l].n_tokens, kGuard);
    p.layers[l].centers = Address(tables.centers[l].data());
    p.layers[l].rows = Address(rows[l].data());
  }
  Run(cuda::center_scores, c.Grid(kMost, cuda::CentersBlockRows(p.keys.lanes)),
      cuda::kCentersThreads, p, Schedule(turn));
  Run(cuda::standardise_rows, {n_q_heads, c.n_layers(), 1},
      cuda::kCentersThreads, p, Schedule(turn));
  for (size_t l = 0; l < rows.size(); ++l) {
    c.CompareRows(rows[l], group, l, kGuard, turn,
                  [&](size_t, uint32_t head, uint32_t n) {
                    oracle_centers in = {};
                    in.keys = c.layers[l].Row(s, head, 0);
                    in.n_tokens = n;
                    in.head_dim = s.head_dim;
                    in.n_sink = std::min(p.n_sink, n);
                    in.n_seen = n_seen;
                    in.group = group;
                    in.n_pairs = n_pairs;
                    in.is_interleaved = p.is_interleaved;
                    in.inv_freq = tables.inv_freq.data();
                    in.centers =
                        tables.centers[l].data() + head * group * tables.stride;
                    in.center_stride = tables.stride;
                    Wanted wanted(size_t{group} * n);
                    oracle_query_centers(&in, nullptr, wanted.values.data(),
                                         wanted.bounds.data());
                    return wanted;
                  });
  }
}

void TestCenters() {
  constexpr uint32_t kDims[] = {2, 3, 16, 32, 40, 41, 64, 80, 128, 520};
  Random random(TestSeed("query_centers"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    Check(RandomPlane(DTypeOfTurn(turn),
                      kDims[turn / kNDTypes % std::size(kDims)],
                      1 + random.Below(2), kMost, random),
          turn, random);
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
