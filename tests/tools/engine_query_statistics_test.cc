// Means, covariances and directions of queries against their definitions.
#include <criterion/criterion.h>

#include <cmath>
#include <complex>
#include <vector>

#include "tests/tools/engine_test_util.h"
#include "tools/engine/policies.h"
#include "tools/engine/query_statistics.h"

namespace kvevict::tools {
namespace {

constexpr uint32_t kLayers = 2, kQHeads = 4, kKvHeads = 2, kDim = 10;
constexpr uint32_t kPairs = 4, kTokens = 70, kFuture = 512;

const KvShape kCache = {.n_layers = kLayers,
                        .n_kv_heads = kKvHeads,
                        .k_head_dim = kDim,
                        .v_head_dim = kDim,
                        .capacity = kTokens};

Rope RopeOf(bool halves) {
  Rope rope{.halves = halves};
  for (uint32_t p = 0; p < kPairs; ++p) {
    rope.inv_freq.push_back(std::pow(100.0, -static_cast<double>(p) / kPairs));
  }
  return rope;
}

using Complex = std::complex<double>;

// The pairs of a row as complex numbers.
std::vector<Complex> Pairs(const float* row, const Rope& rope) {
  std::vector<Complex> pairs;
  for (uint32_t p = 0; p < kPairs; ++p) {
    pairs.emplace_back(row[rope.halves ? p : 2 * p],
                       row[rope.halves ? p + kPairs : 2 * p + 1]);
  }
  return pairs;
}

// A row whose pairs are turned by these factors. Elements beyond the pairs stay.
std::vector<double> Turned(const float* row, const Rope& rope,
                           const std::vector<Complex>& factors) {
  std::vector<double> out(row, row + kDim);
  const std::vector<Complex> pairs = Pairs(row, rope);
  for (uint32_t p = 0; p < kPairs; ++p) {
    const Complex z = pairs[p] * factors[p];
    out[rope.halves ? p : 2 * p] = z.real();
    out[rope.halves ? p + kPairs : 2 * p + 1] = z.imag();
  }
  return out;
}

std::vector<double> Rotated(const float* row, const Rope& rope, double angle) {
  std::vector<Complex> factors;
  for (const double f : rope.inv_freq) {
    factors.push_back(std::polar(1.0, angle * f));
  }
  return Turned(row, rope, factors);
}

// [layer][token][head][element] before RoPE, off centre and different in each layer.
std::vector<float> Queries(uint32_t layer) {
  std::vector<float> q = RandomFloats(kTokens * kQHeads * kDim, layer + 1);
  for (size_t i = 0; i < q.size(); ++i)
    q[i] += 0.1f * static_cast<float>(i % 7);
  return q;
}

// [layer][token][head][element], after RoPE.
std::vector<float> Keys(uint32_t layer) {
  return RandomFloats(kTokens * kKvHeads * kDim, 50 + layer);
}

// Shows them after RoPE, in chunks of 32 and the rest.
void Show(QueryStatistics& statistics, const Rope& rope) {
  KvCache cache(kCache);
  for (uint32_t first = 0; first < kTokens; first += 32) {
    const uint32_t n = std::min(32u, kTokens - first);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<float> keys = Keys(layer);
      const float* const k = &keys[size_t{first} * kKvHeads * kDim];
      const std::vector<float> values = keys;
      cache.Append(layer, n, k, kKvHeads * kDim, values.data(),
                   kKvHeads * kDim);
      const std::vector<float> q = Queries(layer);
      std::vector<float> rows;
      for (uint32_t r = first * kQHeads; r < (first + n) * kQHeads; ++r) {
        for (double x : Rotated(&q[size_t{r} * kDim], rope, r / kQHeads)) {
          rows.push_back(static_cast<float>(x));
        }
      }
      statistics.Observe(layer, cache, rows.data(), n, first);
    }
  }
}

const float* Numbers(const kvevict_plane& plane, uint32_t head) {
  return reinterpret_cast<const float*>(plane.data +
                                        head * plane.head_stride_bytes);
}

void ExpectNear(const kvevict_plane& plane, uint32_t head,
                const std::vector<double>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double got = Numbers(plane, head)[i];
    cr_assert(std::fabs(got - wanted[i]) < 1e-5, "head %u, %zu: %g, not %g",
              head, i, got, wanted[i]);
  }
}

// Means and covariances of queries that are turned by the mean of all rotations to
// come; means and mean lengths of pairs before RoPE.
Test(engine_query_statistics,
     moments_and_centers_are_those_of_their_definition) {
  for (const bool halves : {false, true}) {
    const Rope rope = RopeOf(halves);
    std::vector<Complex> to_come(kPairs);
    for (uint32_t p = 0; p < kPairs; ++p) {
      for (uint32_t f = 0; f < kFuture; ++f) {
        to_come[p] +=
            std::polar(1.0 / kFuture, (kTokens + f) * rope.inv_freq[p]);
      }
    }
    ThreadPool pool(2);
    const Policy policies[] = {ParsePolicy("expected-attention", 20),
                               ParsePolicy("triattention", 20)};
    QueryStatistics statistics(kCache, {.n_q_heads = kQHeads}, rope, policies,
                               pool);
    Show(statistics, rope);
    const auto inputs = statistics.Inputs();
    cr_assert(inputs.size() == kLayers);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      cr_assert(inputs[layer].key_filter == nullptr);
      const std::vector<float> q = Queries(layer);
      for (uint32_t head = 0; head < kQHeads; ++head) {
        std::vector<double> mean(kDim), centers(3 * kPairs);
        std::vector<std::vector<double>> rows;
        for (uint32_t t = 0; t < kTokens; ++t) {
          const float* row = &q[(size_t{t} * kQHeads + head) * kDim];
          rows.push_back(Turned(row, rope, to_come));
          for (uint32_t i = 0; i < kDim; ++i) mean[i] += rows[t][i] / kTokens;
          for (uint32_t p = 0; p < kPairs; ++p) {
            const Complex z = Pairs(row, rope)[p] / double{kTokens};
            centers[p] += z.real();
            centers[kPairs + p] += z.imag();
            centers[2 * kPairs + p] += std::abs(z);
          }
        }
        std::vector<double> covariance;
        for (uint32_t i = 0; i < kDim * kDim; ++i) {
          double& sum = covariance.emplace_back();
          for (const std::vector<double>& row : rows) {
            sum += (row[i / kDim] - mean[i / kDim]) *
                   (row[i % kDim] - mean[i % kDim]) / kTokens;
          }
        }
        ExpectNear(*inputs[layer].query_mean, head, mean);
        ExpectNear(*inputs[layer].query_covariance, head, covariance);
        ExpectNear(*inputs[layer].query_centers, head, centers);
      }
    }
  }
}

// Policies that need them get the whole prompt's queries as shown, others get none.
Test(engine_query_statistics, keeps_queries_for_who_wants_all) {
  Rope rope = RopeOf(true);
  rope.inv_freq.assign(kPairs, 0.0);  // rows after RoPE equal those before
  ThreadPool pool(2);
  for (const char* text : {"non-causal", "snapkv:budget=40,window=8"}) {
    const Policy policy = ParsePolicy(text, 20);
    QueryStatistics statistics(kCache, {.n_q_heads = kQHeads}, rope,
                               std::span(&policy, 1), pool);
    Show(statistics, rope);
    const auto inputs = statistics.Inputs();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const kvevict_plane* const rows = inputs[layer].queries;
      cr_assert((rows != nullptr) == WantsAllQueries(policy), "%s", text);
      if (rows == nullptr) continue;
      const std::vector<float> q = Queries(layer);
      for (uint32_t i = 0; i < kTokens * kQHeads * kDim; ++i) {
        const uint32_t row = i / kDim;
        const auto* const got = reinterpret_cast<const float*>(
            rows->data + row / kQHeads * rows->token_stride_bytes +
            row % kQHeads * rows->head_stride_bytes);
        cr_assert(got[i % kDim] == q[i], "token %u, head %u", row / kQHeads,
                  row % kQHeads);
      }
    }
  }
}

// No other unit vector has a larger sum of squared products, and the mean
// product is negative.
Test(engine_query_statistics, filters_point_away_from_what_queries_share) {
  Rope rope = RopeOf(true);
  rope.inv_freq.assign(kPairs, 0.0);  // rows after RoPE equal those before
  ThreadPool pool(2);
  const Policy policy = ParsePolicy("q-filter", 20);
  QueryStatistics statistics(kCache, {.n_q_heads = kQHeads}, rope,
                             std::span(&policy, 1), pool);
  Show(statistics, rope);
  const auto inputs = statistics.Inputs();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    cr_assert(inputs[layer].query_mean == nullptr);
    const std::vector<float> q = Queries(layer);
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      const auto sums = [&](const float* direction) {
        double sum = 0, squares = 0, norm = 0;
        for (uint32_t i = 0; i < kDim; ++i) {
          norm += double{direction[i]} * direction[i];
        }
        for (uint32_t row = 0; row < kTokens * kQHeads; ++row) {
          if (row % kQHeads / (kQHeads / kKvHeads) != head) continue;
          double product = 0;
          for (uint32_t i = 0; i < kDim; ++i) {
            product += double{q[size_t{row} * kDim + i]} * direction[i];
          }
          sum += product;
          squares += product * product / norm;
        }
        return std::pair(sum, squares);
      };
      const float* filter = Numbers(*inputs[layer].key_filter, head);
      const auto [sum, squares] = sums(filter);
      cr_assert(sum < 0);
      for (uint32_t trial = 0; trial < 200; ++trial) {
        std::vector<float> other = RandomFloats(kDim, 100 + trial);
        for (uint32_t i = 0; i < kDim; ++i) {
          other[i] = filter[i] + 0.1f * other[i];
        }
        cr_assert(sums(other.data()).second <= squares * (1 + 1e-6));
      }
    }
  }
}

// Computes the causal softmax of every row in double precision.
Test(engine_query_statistics, sums_are_those_of_all_rows) {
  const Rope rope = RopeOf(true);
  ThreadPool pool(2);
  const Policy policy = ParsePolicy("h2o:recent=5", 20);
  QueryStatistics statistics(kCache, {.n_q_heads = kQHeads}, rope,
                             std::span(&policy, 1), pool);
  Show(statistics, rope);
  const auto inputs = statistics.Inputs();
  constexpr uint32_t kGroup = kQHeads / kKvHeads;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    cr_assert(inputs[layer].n_sum_heads == kKvHeads);
    const std::vector<float> q = Queries(layer), keys = Keys(layer);
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      std::vector<double> expected(kTokens);
      for (uint32_t row = 0; row < kTokens * kQHeads; ++row) {
        if (row % kQHeads / kGroup != head) continue;
        const std::vector<double> query =
            Rotated(&q[size_t{row} * kDim], rope, row / kQHeads);
        std::vector<double> weights;
        double sum = 0;
        for (uint32_t t = 0; t <= row / kQHeads; ++t) {
          double dot = 0;
          for (uint32_t i = 0; i < kDim; ++i) {
            dot += query[i] * keys[(size_t{t} * kKvHeads + head) * kDim + i];
          }
          weights.push_back(std::exp(dot / std::sqrt(double{kDim})));
          sum += weights.back();
        }
        for (size_t t = 0; t < weights.size(); ++t) {
          expected[t] += weights[t] / sum / kGroup;
        }
      }
      for (uint32_t t = 0; t < kTokens; ++t) {
        const double got = Numbers(*inputs[layer].attention_sums, head)[t];
        cr_assert(std::fabs(got - expected[t]) <= 1e-5 * expected[t],
                  "head %u, token %u: %g, not %g", head, t, got, expected[t]);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict::tools
