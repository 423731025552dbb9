// Attention against softmax in double precision, on every target.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kvevict/experimental.h"
#include "tests/tools/engine_test_util.h"
#include "tests/tools/float_bits.h"
#include "tools/engine/attention.h"

namespace kvevict::tools {
namespace {

struct Case {
  uint32_t n_slots;
  uint32_t n_queries;
  uint32_t n_kv_heads;
  uint32_t group_size;
  uint32_t k_head_dim;
  uint32_t v_head_dim;
  kvevict_dtype dtype = KVEVICT_DTYPE_F32;
  float scale = 0.0f;
  uint32_t gap = 0;  // each head has so many slots less than the one before
};

// Sizes lie around tiles of 64 slots, the 16 rows from which on it multiplies
// matrices, and vectors of 4 to 16.
const Case kCases[] = {
    {1, 1, 1, 1, 8, 8},
    {63, 1, 2, 2, 64, 64},
    {64, 1, 1, 4, 33, 17},
    {65, 1, 3, 1, 80, 80, KVEVICT_DTYPE_BF16},
    {200, 1, 2, 4, 128, 128, KVEVICT_DTYPE_F16},
    {512, 1, 1, 2, 16, 16},
    {513, 1, 1, 2, 16, 16},
    {5000, 1, 2, 2, 32, 40, KVEVICT_DTYPE_BF16, 0.3f},
    {130, 1, 2, 20, 32, 24},
    {2, 2, 1, 1, 8, 8},
    {64, 64, 1, 2, 64, 64},
    {65, 65, 2, 1, 128, 128, KVEVICT_DTYPE_F16},
    {300, 133, 2, 2, 40, 24},
    {129, 7, 1, 3, 33, 17, KVEVICT_DTYPE_BF16},
    {300, 257, 1, 1, 48, 48, KVEVICT_DTYPE_F32, 2.0f},
    {700, 140, 1, 4, 80, 72, KVEVICT_DTYPE_BF16},
    {700, 1, 3, 2, 32, 24, KVEVICT_DTYPE_F32, 0.0f, 130},
    {90, 5, 4, 1, 33, 17, KVEVICT_DTYPE_F16, 0.0f, 28},
    {300, 140, 2, 2, 40, 40, KVEVICT_DTYPE_BF16, 0.0f, 100},
};

// Keys, values and queries; slots past n_slots hold NaN, which must not be read.
struct Data {
  explicit Data(const Case& c)
      : cache({.n_layers = 2,
               .n_kv_heads = c.n_kv_heads,
               .k_head_dim = c.k_head_dim,
               .v_head_dim = c.v_head_dim,
               .dtype = c.dtype,
               .capacity = c.n_slots + 70}),
        k(RandomFloats(size_t{c.n_slots} * c.n_kv_heads * c.k_head_dim, 1)),
        v(RandomFloats(size_t{c.n_slots} * c.n_kv_heads * c.v_head_dim, 2)),
        q(RandomFloats(
            size_t{c.n_queries} * c.n_kv_heads * c.group_size * c.k_head_dim,
            3)) {
    const size_t k_len = c.n_kv_heads * c.k_head_dim;
    const size_t v_len = c.n_kv_heads * c.v_head_dim;
    cache.Append(1, c.n_slots, k.data(), k_len, v.data(), v_len);
    const std::vector<float> nan(70 * std::max(k_len, v_len),
                                 std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> of_values = nan;
    cache.Append(1, 70, nan.data(), k_len, of_values.data(), v_len);
    std::vector<uint32_t> lengths;
    for (uint32_t h = 0; h < c.n_kv_heads; ++h) {
      lengths.push_back(c.n_slots - h * c.gap);
    }
    cache.set_lengths(1, lengths);
    for (auto* values : {&k, &v}) {
      for (float& x : *values) {
        if (c.dtype == KVEVICT_DTYPE_F16) x = F16ToF32(F32ToF16(x));
        if (c.dtype == KVEVICT_DTYPE_BF16) x = Bf16ToF32(F32ToBf16(x));
      }
    }
  }

  std::vector<float> Run(const Case& c, uint32_t n_threads,
                         const char* target = nullptr) const {
    const uint32_t n_q_heads = c.n_kv_heads * c.group_size;
    std::vector<float> out(size_t{c.n_queries} * n_q_heads * c.v_head_dim);
    ThreadPool pool(n_threads);
    Attention(pool, target)
        .Attend({.cache = &cache,
                 .layer = 1,
                 .queries = q.data(),
                 .n_queries = c.n_queries,
                 .n_q_heads = n_q_heads,
                 .scale = c.scale,
                 .out = out.data()});
    return out;
  }

  KvCache cache;
  std::vector<float> k, v, q;
};

struct Expected {
  std::vector<double> out;
  double tolerance;
};

// Computes one query head of one query.
Expected Oracle(const Case& c, const Data& data, uint32_t query,
                uint32_t q_head) {
  const uint32_t kv_head = q_head / c.group_size;
  const uint32_t n_q_heads = c.n_kv_heads * c.group_size;
  const double scale = c.scale != 0.0f ? static_cast<double>(c.scale)
                                       : 1 / std::sqrt(1.0 * c.k_head_dim);
  const float* q =
      data.q.data() + (size_t{query} * n_q_heads + q_head) * c.k_head_dim;
  // The last query sees everything, each before it one slot less.
  const uint32_t n = c.n_slots - (c.n_queries - 1 - query) - kv_head * c.gap;
  std::vector<double> logits(n);
  double logit_error = 0;
  for (uint32_t s = 0; s < n; ++s) {
    const float* k =
        data.k.data() + (size_t{s} * c.n_kv_heads + kv_head) * c.k_head_dim;
    double magnitude = 0;
    for (uint32_t e = 0; e < c.k_head_dim; ++e) {
      logits[s] += scale * double{q[e]} * double{k[e]};
      magnitude += scale * std::fabs(double{q[e]} * double{k[e]});
    }
    // The logit rounds once per product and sum, three times in the scaled
    // query, and twice in subtracting the maximum.
    logit_error =
        std::max(logit_error, (c.k_head_dim + 5) * kRoundoff * magnitude);
  }
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out(c.v_head_dim);
  double sum = 0;
  double v_max = 0;
  for (uint32_t s = 0; s < n; ++s) {
    const double weight = std::exp(logits[s] - max);
    sum += weight;
    const float* v =
        data.v.data() + (size_t{s} * c.n_kv_heads + kv_head) * c.v_head_dim;
    for (uint32_t e = 0; e < c.v_head_dim; ++e) {
      out[e] += weight * double{v[e]};
      v_max = std::max(v_max, std::fabs(double{v[e]}));
    }
  }
  for (double& x : out) x /= sum;
  // Weights err by logit and exp2 (4 roundings), and sums by one rounding per slot,
  // above and below the fraction line.
  const double relative = 2 * (logit_error + (4 + n) * kRoundoff);
  return {out, relative * v_max};
}

void ExpectAttention(const Case& c, const char* target) {
  const Data data(c);
  const std::vector<float> got = data.Run(c, 2, target);
  const float* at = got.data();
  for (uint32_t query = 0; query < c.n_queries; ++query) {
    for (uint32_t head = 0; head < c.n_kv_heads * c.group_size; ++head) {
      const Expected expected = Oracle(c, data, query, head);
      for (double value : expected.out) {
        cr_assert(std::fabs(double{*at} - value) <= expected.tolerance,
                  "%s, %u slots, query %u, head %u: %g, not %g within %g",
                  target, c.n_slots, query, head, double{*at}, value,
                  expected.tolerance);
        ++at;
      }
    }
  }
}

Test(engine_attention, equals_the_oracle_on_every_target) {
  for (uint32_t i = 0; const char* target = kvevict_simd_target_at(i); ++i) {
    for (const Case& c : kCases) ExpectAttention(c, target);
  }
}

Test(engine_attention, gives_the_same_bytes_for_every_number_of_threads) {
  for (const Case& c : kCases) {
    const Data data(c);
    const std::vector<float> one = data.Run(c, 1);
    for (uint32_t n_threads : {2u, 3u, 5u}) {
      const std::vector<float> many = data.Run(c, n_threads);
      cr_assert(std::memcmp(one.data(), many.data(), 4 * one.size()) == 0,
                "%u slots, %u threads", c.n_slots, n_threads);
    }
  }
}

// Logits are in the hundreds, as in sharp heads: nothing overflows, and the
// winning slot takes all.
Test(engine_attention, survives_large_logits) {
  constexpr uint32_t kSlots = 150, kDim = 16;
  for (uint32_t n_queries : {1u, 2u, 20u}) {
    for (uint32_t winner : {0u, 63u, 64u, 100u}) {
      const Case c = {kSlots, n_queries, 1, 1, kDim, kDim};
      Data data(c);
      std::vector<float> k(kSlots * kDim, -20.0f);
      std::fill_n(k.begin() + winner * kDim, kDim, 20.0f);
      std::fill(data.q.begin(), data.q.end(), 20.0f);
      data.cache.set_length(1, 0);
      data.cache.Append(1, kSlots, k.data(), kDim, data.v.data(), kDim);
      const std::vector<float> out = data.Run(c, 1);
      for (uint32_t i = 0; i < n_queries * kDim; ++i) {
        cr_expect(out[i] == data.v[winner * kDim + i % kDim]);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict::tools
