// Logits and softmax of expected attention in any layout, against double precision.
#include "cuda/kernels/expected_attention.cu"

#include <cmath>

#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/expected_attention.h"

namespace kvevict {
namespace {

constexpr uint32_t kMost = 150;
constexpr float kGuard = -77.0f;

// A layer's queries; heads of mean and covariance lie 3 elements apart.
struct Queries {
  std::vector<float> mean;
  std::vector<float> covariance;
};
constexpr size_t kGap = 3;

Queries DrawQueries(const PlaneShape& c, uint32_t group, bool spreads,
                    Random& random) {
  const size_t n_q_heads = size_t{c.n_heads} * group;
  const size_t square = size_t{c.head_dim} * c.head_dim;
  const float step = 0.2f / std::sqrt(static_cast<float>(c.head_dim));
  Queries queries;
  queries.mean.resize(n_q_heads * (c.head_dim + kGap));
  for (float& v : queries.mean) v = random.Gaussian();
  if (!spreads) return queries;
  queries.covariance.resize(n_q_heads * (square + kGap));
  for (float& v : queries.covariance) v = step * random.Gaussian();
  return queries;
}

Wanted WeightsOf(const PlaneShape& c, const float* keys, const float* biases,
                 const Queries& queries, uint32_t head, uint32_t n_tokens,
                 const cuda::ExpectedParams& p) {
  const size_t dim = c.head_dim;
  oracle::ExpectedAttentionInput in;
  in.n_tokens = n_tokens;
  in.n_sink = std::min(p.n_sink, n_tokens);
  in.group = p.group;
  in.head_dim = c.head_dim;
  in.scale = p.scale;
  in.keys.assign(keys, keys + n_tokens * dim);
  if (biases != nullptr) in.biases.assign(biases, biases + n_tokens);
  for (size_t q = size_t{head} * p.group; q < (head + size_t{1}) * p.group;
       ++q) {
    const float* const mean = &queries.mean[q * (dim + kGap)];
    in.mean.insert(in.mean.end(), mean, mean + dim);
    if (queries.covariance.empty()) continue;
    const float* const rows = &queries.covariance[q * (dim * dim + kGap)];
    in.covariance.insert(in.covariance.end(), rows, rows + dim * dim);
  }
  in.sum_steps = 3 + 5 + 8;  // by a thread, a warp, a block
  const oracle::ExpectedAttentionResult result = oracle::ExpectedAttention(in);
  Wanted wanted;
  wanted.values.assign(result.weights.begin(), result.weights.end());
  wanted.bounds.assign(result.tolerance.begin(), result.tolerance.end());
  return wanted;
}

void Check(const PlaneShape& s, uint32_t turn, Random& random) {
  CacheLaunch c(s, 1 + turn % 2, 0, random);
  c.Draw(1, random);  // all are finite
  const bool spreads = random.Below(3) > 0;
  const PlaneShape like_biases = RandomBiases(s, random);
  auto p = c.Lend<cuda::ExpectedParams>();
  p.mean_stride = s.head_dim + kGap;
  p.covariance_stride = uint64_t{s.head_dim} * s.head_dim + kGap;
  p.group = 1 + random.Below(3);
  p.n_sink = random.Below(5);
  p.scale = 0.5f / std::sqrt(static_cast<float>(s.head_dim));
  p.half_square = p.scale * p.scale * 0.5f;
  p.biases = like_biases.cache_rows().layout;
  std::vector<CacheLayer> biases;
  std::vector<Queries> queries;
  std::vector<std::vector<float>> rows;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    biases.push_back(MakeCacheLayer(like_biases, c.tokens, l, {}, random, false,
                                    &c.layers[l].tables));
    queries.push_back(DrawQueries(s, p.group, spreads, random));
    rows.emplace_back(size_t{s.n_heads} * p.group * c.layers[l].n_tokens,
                      kGuard);
    p.bias_bases[l] = Address(biases[l].memory.data());
    p.layers[l].mean = Address(queries[l].mean.data());
    p.layers[l].covariance =
        spreads ? Address(queries[l].covariance.data()) : 0;
    p.layers[l].rows = Address(rows[l].data());
  }
  Run(cuda::expected_logits, c.Grid(kMost, cuda::kExpectedKeys),
      cuda::kExpectedThreads, p, Schedule(turn));
  Run(cuda::expected_softmax, {s.n_heads * p.group, c.n_layers(), 1},
      cuda::kExpectedThreads, p, Schedule(turn));
  for (size_t l = 0; l < rows.size(); ++l) {
    c.CompareRows(rows[l], p.group, l, kGuard, turn,
                  [&](size_t, uint32_t head, uint32_t n) {
                    return WeightsOf(
                        s, c.layers[l].Row(s, head, 0),
                        KV_BIAS ? biases[l].Row(like_biases, head, 0) : nullptr,
                        queries[l], head, n, p);
                  });
  }
}

void TestExpectedAttention() {
  constexpr uint32_t kDims[] = {1, 8, 24, 32, 33, 40, 64, 72};
  Random random(TestSeed("expected_attention"));
  for (uint32_t turn = 0; turn < 48; ++turn) {
    Check(RandomPlane(DTypeOfTurn(turn),
                      kDims[turn / kNDTypes % std::size(kDims)],
                      1 + random.Below(2), kMost, random),
          turn, random);
  }
}

// A row is NaN if one logit is. Rows are longer than a block has threads.
void TestSoftmax() {
  Random random(TestSeed("expected_attention/softmax"));
  for (uint32_t n : {1u, 255u, 257u, 700u, 1500u}) {
    for (uint32_t n_sink : {0u, 4u}) {
      std::vector<float> rows(2 * n);
      for (float& v : rows) v = 3.0f * random.Gaussian();
      if (n_sink > 0) rows[0] = NAN;
      rows[2 * n - 1] = NAN;
      const std::vector<float> logits = rows;
      cuda::ExpectedParams p = {};
      p.group = 2;
      p.n_sink = n_sink;
      p.layers[0].rows = Address(rows.data());
      p.layers[0].n_tokens = n;
      Run(cuda::expected_softmax, {2, 1, 1}, cuda::kExpectedThreads, p,
          Schedule(n));
      double most = -INFINITY, sum = 0.0;
      for (uint32_t t = n_sink; t < n; ++t) most = std::fmax(most, logits[t]);
      for (uint32_t t = n_sink; t < n; ++t) sum += std::exp(logits[t] - most);
      for (uint32_t t = 0; t < n; ++t) {
        const double want = t < n_sink ? 0.0 : std::exp(logits[t] - most) / sum;
        // The logits here are below 16.
        if (!(std::abs(rows[t] - want) <= 200 * 0x1p-24 * want)) {
          Fail("%u logits: weight %u is %.9g, not %.9g", n, t,
               static_cast<double>(rows[t]), want);
        }
        const float beside = rows[n + t];
        if (t < n_sink ? beside != 0.0f : !std::isnan(beside)) {
          Fail("%u logits: weight %u is %.9g beside NaN", n, t,
               static_cast<double>(beside));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestExpectedAttention();
  kvevict::TestSoftmax();
}
