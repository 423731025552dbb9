// NaN and infinity do what window_attention.h promises.
#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/attention_case.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr uint32_t kTokens = 150;
constexpr uint32_t kWindow = 20;
constexpr uint32_t kGroup = 2;
constexpr uint32_t kDim = 8;

oracle::WindowAttentionInput Input() {
  Random random(7);
  return RandomInput(kTokens, kWindow, kGroup, kDim, random);
}

float* Key(oracle::WindowAttentionInput& in, uint32_t token) {
  return &in.keys[token * kDim];
}

float* Query(oracle::WindowAttentionInput& in, uint32_t head, uint32_t w) {
  return &in.queries[(head * kWindow + w) * kDim];
}

// Compares with the oracle, and wants NaN where the oracle has NaN.
void ExpectOracleWithNan(const oracle::WindowAttentionInput& in) {
  const oracle::WindowAttentionResult expected = oracle::WindowAttention(in);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (std::isnan(expected.weights[i])) {
        cr_assert(std::isnan(weights[i]), "%s: %zu is %g, expected NaN",
                  simd.name, i, static_cast<double>(weights[i]));
      } else {
        cr_assert(
            std::abs(weights[i] - expected.weights[i]) <= expected.tolerance[i],
            "%s: %zu is %g, expected %g", simd.name, i,
            static_cast<double>(weights[i]), expected.weights[i]);
      }
    }
  });
}

size_t CountNan(const std::vector<float>& weights, uint32_t head) {
  size_t n = 0;
  for (uint32_t j = 0; j < kTokens; ++j) {
    n += std::isnan(weights[head * kTokens + j]);
  }
  return n;
}

TestSuite(window_attention_special);

// Row w sees kTokens - kWindow + w + 1 keys; the other head stays clean.
Test(window_attention_special, nan_query_spoils_what_its_row_sees) {
  for (uint32_t w : {0u, 7u, kWindow - 1}) {
    oracle::WindowAttentionInput in = Input();
    Query(in, 1, w)[3] = kNan;
    ExpectOracleWithNan(in);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> weights = RunKernel(simd, in);
      cr_assert(CountNan(weights, 0) == 0, "%s", simd.name);
      cr_assert(CountNan(weights, 1) == kTokens - kWindow + w + 1, "%s",
                simd.name);
    });
  }
}

Test(window_attention_special, nan_key_spoils_the_rows_that_see_it) {
  for (uint32_t token : {0u, 64u, kTokens - kWindow, kTokens - 1}) {
    oracle::WindowAttentionInput in = Input();
    Key(in, token)[kDim - 1] = kNan;
    ExpectOracleWithNan(in);
    ForEachTarget([&](SimdTarget simd) {
      // The last row sees every key.
      const std::vector<float> weights = RunKernel(simd, in);
      cr_assert(CountNan(weights, 0) == kTokens, "%s", simd.name);
    });
  }
}

// A NaN can hide a larger logit from a maximum, and its payload could look like an
// exponent. Tries any place in a tile and any payload.
Test(window_attention_special, nan_is_never_lost) {
  for (uint32_t token = 0; token < 64; ++token) {
    oracle::WindowAttentionInput in = Input();
    uint32_t bits = 0x7FC00001u + token;
    std::memcpy(Key(in, token), &bits, sizeof(bits));
    for (uint32_t d = 0; d < kDim; ++d) Key(in, (token + 16) % 64)[d] *= 300.0f;
    ForEachTarget([&](SimdTarget simd) {
      cr_assert(CountNan(RunKernel(simd, in), 1) == kTokens, "%s: %u",
                simd.name, token);
    });
  }
}

Test(window_attention_special, infinite_logits_are_nan_or_zero) {
  oracle::WindowAttentionInput in = Input();
  // Rows with a positive first element see +infinity, others -infinity.
  Key(in, 70)[0] = kInfinity;
  ExpectOracleWithNan(in);
  in = Input();
  for (float& q : in.queries) q = std::abs(q);
  for (uint32_t token : {0u, 5u, 70u}) Key(in, token)[0] = -kInfinity;
  ExpectOracleWithNan(in);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in);
    cr_assert(CountNan(weights, 0) == 0, "%s", simd.name);
    cr_assert(weights[5] == 0.0f && weights[70] == 0.0f, "%s", simd.name);
  });
}

// Nothing in the first tile counts, so the softmax is over the rest.
Test(window_attention_special, a_tile_of_minus_infinity_counts_nothing) {
  oracle::WindowAttentionInput in = Input();
  for (float& q : in.queries) q = std::abs(q);
  for (uint32_t token = 0; token < 64; ++token) Key(in, token)[0] = -kInfinity;
  ExpectOracleWithNan(in);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> weights = RunKernel(simd, in);
    cr_assert(CountNan(weights, 0) == 0, "%s", simd.name);
    for (uint32_t j = 0; j < 64; ++j) cr_assert(weights[j] == 0.0f);
  });
}

Test(window_attention_special, nothing_but_minus_infinity_is_nan) {
  oracle::WindowAttentionInput in = Input();
  for (float& q : in.queries) q = std::abs(q);
  for (uint32_t token = 0; token < kTokens; ++token) {
    Key(in, token)[0] = -kInfinity;
  }
  ExpectOracleWithNan(in);
}

// Biases hide slots in the first tile, in all that the first rows see, or all slots,
// of which one may be NaN. A sink changes nothing.
Test(window_attention_special, rows_whose_slots_are_hidden_add_nothing) {
  for (const uint32_t n_hidden : {70u, kTokens - kWindow + 5, kTokens}) {
    for (const bool has_sinks : {false, true}) {
      for (const uint32_t options : {0u, 1u, 2u, 3u}) {
        oracle::WindowAttentionInput in = Input();
        in.biases.assign(kTokens, 0.25f);
        std::fill_n(in.biases.begin(), n_hidden, -kInfinity);
        if (has_sinks) in.sinks = {0.5f, -kInfinity};
        in.max_of_rows = (options & 1) != 0;
        if ((options & 2) != 0) {
          in.logit_heads = kGroup;
          in.group = 1;
        }
        ExpectOracleWithNan(in);
        ForEachTarget([&](SimdTarget simd) {
          const std::vector<float> weights = RunKernel(simd, in);
          for (uint32_t j = 0; j < kTokens; ++j) {
            cr_assert((weights[j] == 0.0f) == (j < n_hidden), "%s: %u is %g",
                      simd.name, j, static_cast<double>(weights[j]));
          }
        });
        Key(in, 3)[0] = kNan;
        ExpectOracleWithNan(in);
      }
    }
  }
}

Test(window_attention_special, rows_of_log_sum_exp_minus_infinity_add_nothing) {
  oracle::WindowAttentionInput in = Input();
  in.group = 1;
  in.queries.resize(size_t{kWindow} * kDim);
  ForEachTarget([&](SimdTarget simd) {
    std::vector<float> lse(kWindow, 5.0f);
    in.biases.assign(kTokens, -kInfinity);
    in.biases[kTokens - 4] = 0.5f;  // seen by the last four rows
    std::fill_n(lse.begin(), kWindow - 4, -kInfinity);
    std::vector<float> weights = RunKernel(simd, in, {}, {}, 0, {}, lse);
    for (uint32_t j = 0; j < kTokens; ++j) {
      cr_assert(j == kTokens - 4 ? weights[j] > 0.0f : weights[j] == 0.0f,
                "%s: %u is %g", simd.name, j, static_cast<double>(weights[j]));
    }
    // What is given counts, but NaN stays.
    in.biases.assign(kTokens, 80.0f);
    std::fill_n(lse.begin(), kWindow, -kInfinity);
    for (const float w : RunKernel(simd, in, {}, {}, 0, {}, lse)) {
      cr_assert(w == 0.0f, "%s: %g", simd.name, static_cast<double>(w));
    }
    in.biases[9] = kNan;
    weights = RunKernel(simd, in, {}, {}, 0, {}, lse);
    cr_assert(std::isnan(weights[9]), "%s", simd.name);
    lse[2] = kInfinity;
    weights = RunKernel(simd, in, {}, {}, 0, {}, lse);
    cr_assert(CountNan(weights, 0) == kTokens - kWindow + 3, "%s", simd.name);
  });
}

// Products that overflow f32 are infinite to the kernel, not to the oracle. The
// kernel only promises to return and to leave the other head alone.
Test(window_attention_special, overflow_is_confined) {
  oracle::WindowAttentionInput in = Input();
  Query(in, 0, 4)[0] = 3e38f;
  Key(in, 9)[0] = 3e38f;
  for (uint32_t w = 0; w < kWindow; ++w) Query(in, 1, w)[0] = 0.0f;
  ForEachTarget([&](SimdTarget simd) {
    cr_assert(CountNan(RunKernel(simd, in), 1) == 0, "%s", simd.name);
  });
}

Test(window_attention_special, scale_may_be_zero_or_nan) {
  oracle::WindowAttentionInput in = Input();
  in.scale = 0.0f;
  ExpectOracleWithNan(in);
  in.scale = kNan;
  ExpectOracleWithNan(in);
}

}  // namespace
}  // namespace kvevict
