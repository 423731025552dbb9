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

oracle::ExpectedAttentionResult Expected(const PlaneShape& c,
                                         const CacheLayer& layer,
                                         const float* biases,
                                         const Queries& queries, uint32_t group,
                                         uint32_t head, uint32_t n_tokens,
                                         const cuda::ExpectedParams& p) {
  const size_t dim = c.head_dim;
  oracle::ExpectedAttentionInput in;
  in.n_tokens = n_tokens;
  in.n_sink = std::min(p.n_sink, n_tokens);
  in.group = group;
  in.head_dim = c.head_dim;
  in.scale = p.scale;
  const float* const keys = layer.Row(c, head, 0);
  in.keys.assign(keys, keys + n_tokens * dim);
  if (biases != nullptr) in.biases.assign(biases, biases + n_tokens);
  for (size_t q = size_t{head} * group; q < (head + size_t{1}) * group; ++q) {
    const float* const mean = &queries.mean[q * (dim + kGap)];
    in.mean.insert(in.mean.end(), mean, mean + dim);
    if (queries.covariance.empty()) continue;
    const float* const rows = &queries.covariance[q * (dim * dim + kGap)];
    in.covariance.insert(in.covariance.end(), rows, rows + dim * dim);
  }
  in.sum_steps = 3 + 5 + 8;  // by a thread, a warp, a block
  return oracle::ExpectedAttention(in);
}

void Check(const PlaneShape& c, bool has_counts, Random& random,
           uint32_t turn) {
  ListTable tokens(c.n_heads, has_counts, 2);
  const uint32_t n_layers = 1 + turn % 2;
  const uint32_t group = 1 + random.Below(3);
  const bool spreads = random.Below(3) > 0;
  const PlaneShape like_biases = RandomBiases(c, random);
  std::vector<CacheLayer> layers, biases;
  std::vector<Queries> queries;
  std::vector<std::vector<float>> rows;
  for (size_t l = 0; l < n_layers; ++l) {
    tokens.AddLayer(0, 1 + random.Below(kMost), random);
    layers.push_back(MakeCacheLayer(c, tokens, l, {}, random));
    biases.push_back(MakeCacheLayer(like_biases, tokens, l, {}, random, false,
                                    &layers[l].tables));
    queries.push_back(DrawQueries(c, group, spreads, random));
    rows.emplace_back(size_t{c.n_heads} * group * layers[l].n_tokens, kGuard);
  }
  cuda::ExpectedParams p = {};
  p.keys = c.cache_rows();
  p.tokens = tokens.table();
  p.mean_stride = c.head_dim + kGap;
  p.covariance_stride = uint64_t{c.head_dim} * c.head_dim + kGap;
  p.group = group;
  p.n_sink = random.Below(5);
  p.scale = 0.5f / std::sqrt(static_cast<float>(c.head_dim));
  p.half_square = p.scale * p.scale * 0.5f;
  p.biases = like_biases.cache_rows().layout;
  for (size_t l = 0; l < n_layers; ++l) {
    p.bias_bases[l] = Address(biases[l].memory.data());
    p.layers[l] = {Address(layers[l].memory.data()),
                   Address(layers[l].tables.data()),
                   Address(queries[l].mean.data()),
                   spreads ? Address(queries[l].covariance.data()) : 0,
                   Address(rows[l].data()),
                   layers[l].n_tokens,
                   tokens.FirstOf(l)};
  }
  const uint32_t keys = cuda::kExpectedKeys;
  Run(cuda::expected_logits, {(kMost + keys - 1) / keys, c.n_heads, n_layers},
      cuda::kExpectedThreads, p, Schedule(turn));
  Run(cuda::expected_softmax, {c.n_heads * group, n_layers, 1},
      cuda::kExpectedThreads, p, Schedule(turn));
  for (size_t l = 0; l < n_layers; ++l) {
    const uint32_t n = layers[l].n_tokens;
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      const uint32_t n_held = tokens.Of(l, h);
      const oracle::ExpectedAttentionResult expected = Expected(
          c, layers[l], KV_BIAS ? biases[l].Row(like_biases, h, 0) : nullptr,
          queries[l], group, h, n_held, p);
      for (uint32_t i = 0; i < group * n; ++i) {
        const float got = rows[l][size_t{h} * group * n + i];
        const uint32_t t = i % n;
        const size_t at = size_t{i / n} * n_held + t;
        const double want = t < n_held ? expected.weights[at] : kGuard;
        const double most = t < n_held ? expected.tolerance[at] : 0.0;
        if (std::abs(got - want) <= most) continue;
        Fail("case %u, layer %zu, head %u: weight %u is %.9g, not %.9g", turn,
             l, h, i, static_cast<double>(got), want);
      }
    }
  }
}

void TestExpectedAttention() {
  constexpr uint32_t kDims[] = {1, 8, 24, 32, 33, 40, 64, 72};
  Random random(TestSeed("expected_attention"));
  for (uint32_t turn = 0; turn < 48; ++turn) {
    const PlaneShape c = RandomPlane(DTypeOfTurn(turn),
                                     kDims[turn / kNDTypes % std::size(kDims)],
                                     1 + random.Below(2), kMost, random);
    Check(c, random.Below(2) == 0, random, turn);
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
