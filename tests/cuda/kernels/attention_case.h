// A launch of attention, and its results compared with double precision.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_ATTENTION_CASE_H_
#define KVEVICT_TESTS_CUDA_KERNELS_ATTENTION_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/kernels/attention.h"
#include "tests/cuda/kernels/cache_layer.h"
#include "tests/oracle/attention.h"

namespace kvevict {

inline constexpr float kGuard = -77.0f;
inline constexpr float kLog2E = 1.44269504088896340736f;

// A launch of one or two layers and its arguments.
struct AttendCase {
  PlaneShape keys;
  PlaneShape values;
  ListTable tokens;
  uint32_t group;
  uint32_t n_queries;
  uint32_t window;
  bool non_causal;
  bool sums_are_shared;
  float scale;
  float cap;
  uint32_t q_dtype = cuda::kF32;
  // Errors of tensor cores, see oracle_query and AttendMmaError.
  double dot_error = 0.0;
  double value_error = 0.0;
  double lost_weight = 0.0;
  PlaneShape biases = {};  // with KV_BIAS

  uint32_t n_q_heads() const { return keys.n_heads * group; }
};

struct AttendedLayer {
  CacheLayer keys;
  CacheLayer values;
  CacheLayer biases;           // maybe none
  std::vector<float> queries;  // [query, q head, element]
  std::vector<uint8_t> stored_queries;
  std::vector<float> sinks;  // maybe none
  std::vector<float> out;    // [q head, query, element + 1]
  std::vector<float> lse;    // [query, q head]
  std::vector<float> sums;   // [slot, sum head]
};

inline AttendedLayer MakeLayer(const AttendCase& c, size_t l,
                               const std::vector<float>& odd, Random& random,
                               const std::vector<float>& odd_keys = {}) {
  AttendedLayer layer;
  layer.keys = MakeCacheLayer(c.keys, c.tokens, l, odd_keys, random);
  layer.values = MakeCacheLayer(c.values, c.tokens, l, odd, random, false,
                                &layer.keys.tables);
  if (c.biases.n_heads > 0) {
    std::vector<float> hidden;
    if (random.Below(2) == 0) hidden = {-INFINITY};
    layer.biases = MakeCacheLayer(c.biases, c.tokens, l, hidden, random, false,
                                  &layer.keys.tables);
  }
  const size_t n_rows = size_t{c.n_q_heads()} * c.n_queries;
  layer.queries.resize(n_rows * c.keys.head_dim);
  const size_t bytes = c.q_dtype == cuda::kF32 ? 4 : 2;
  layer.stored_queries.resize(layer.queries.size() * bytes);
  for (size_t i = 0; i < layer.queries.size(); ++i) {
    float& v = layer.queries[i];
    v = random.Gaussian();
    if (bytes == 2) v = std::round(16.0f * v) / 16.0f;
    const uint32_t bits = EncodeElement(c.q_dtype, v);
    std::memcpy(&layer.stored_queries[i * bytes], &bits, bytes);
  }
  if (random.Below(2) == 0) {
    for (uint32_t h = 0; h < c.n_q_heads(); ++h) {
      layer.sinks.push_back(4.0f * random.Gaussian());
    }
  }
  layer.out.assign(n_rows * (c.values.head_dim + 1), kGuard);
  layer.lse.assign(n_rows, kGuard);
  layer.sums.assign(size_t{layer.keys.n_tokens} * c.n_q_heads(), kGuard);
  return layer;
}

inline cuda::AttendParams ParamsOf(const AttendCase& c,
                                   std::vector<AttendedLayer>& layers) {
  cuda::AttendParams p = {};
  const int64_t dim = c.keys.head_dim;
  const int64_t bytes = c.q_dtype == cuda::kF32 ? 4 : 2;
  p.queries.layout.row_stride = c.n_q_heads() * dim * bytes;
  p.queries.layout.head_stride = dim * bytes;
  p.queries.layout.element_stride = bytes;
  p.queries.dtype = c.q_dtype;
  p.queries.head_dim = c.keys.head_dim;
  p.queries.wide = c.keys.head_dim * bytes % 16 == 0 ? 16 : 0;
  p.keys = c.keys.cache_rows();
  p.values = c.values.cache_rows();
  p.out_element_stride = 4;
  p.out_row_stride = (int64_t{c.values.head_dim} + 1) * 4;
  p.out_head_stride = p.out_row_stride * c.n_queries;
  p.lse_head_stride = 4;
  p.lse_row_stride = int64_t{c.n_q_heads()} * 4;
  p.sum_head_stride = 4;
  p.sum_slot_stride = int64_t{c.n_q_heads()} * 4;
  p.tokens = c.tokens.table();
  p.out_dtype = cuda::kF32;
  p.n_queries = c.n_queries;
  p.group = c.group;
  p.window = c.window;
  p.non_causal = c.non_causal;
  p.sums_are_shared = c.sums_are_shared;
  p.query_scale = c.cap == 0.0f ? c.scale * kLog2E : c.scale / c.cap;
  p.cap = c.cap * kLog2E;
  const bool has_biases = c.biases.n_heads > 0;
  if (has_biases) p.biases = c.biases.cache_rows().layout;
  for (size_t l = 0; l < layers.size(); ++l) {
    AttendedLayer& layer = layers[l];
    if (has_biases) p.bias_bases[l] = Address(layer.biases.memory.data());
    p.layers[l] = {Address(layer.stored_queries.data()),
                   Address(layer.keys.memory.data()),
                   Address(layer.values.memory.data()),
                   Address(layer.keys.tables.data()),
                   layer.sinks.empty() ? 0 : Address(layer.sinks.data()),
                   Address(layer.out.data()),
                   Address(layer.lse.data()),
                   Address(layer.sums.data()),
                   layer.keys.n_tokens,
                   c.tokens.FirstOf(l)};
  }
  return p;
}

inline void ExpectNear(double got, double want, double tolerance,
                       const char* what, uint32_t turn, uint32_t head,
                       uint32_t query, uint32_t e) {
  if (std::isnan(want) || std::isinf(want)) {
    // Infinite values whose weights round to either sign give either.
    if (std::isfinite(want) == std::isfinite(got)) return;
  }
  if (got == want || std::abs(got - want) <= tolerance) return;
  Fail("case %u, %s of head %u, query %u, element %u: %.9g, not %.9g by %.3g",
       turn, what, head, query, e, got, want, tolerance);
}

inline void Compare(const AttendCase& c, const AttendedLayer& layer, size_t l,
                    uint32_t turn, bool has_sums = true) {
  const uint32_t dim = c.values.head_dim;
  const uint32_t n = layer.keys.n_tokens;
  for (uint32_t h = 0; h < c.keys.n_heads; ++h) {
    const uint32_t held = c.tokens.Of(l, h);
    std::vector<double> sums(n), tolerances(n);
    // Values are at most 8, and codes likewise.
    const double lost = c.lost_weight * held * 8.0;
    for (uint32_t g = h * c.group; g < (h + 1) * c.group; ++g) {
      for (uint32_t i = 0; i < c.n_queries; ++i) {
        const size_t row = size_t{i} * c.n_q_heads() + g;
        std::vector<double> out(dim), tolerance(dim), weights(n), off(n);
        oracle_query in = {};
        in.query = &layer.queries[row * c.keys.head_dim];
        in.keys = layer.keys.Row(c.keys, h, 0);
        in.values = layer.values.Row(c.values, h, 0);
        in.n_tokens = held;
        in.k_dim = c.keys.head_dim;
        in.v_dim = in.value_stride = dim;
        in.slot = int64_t{held} - c.n_queries + i;
        in.window = c.window;
        in.non_causal = c.non_causal;
        in.scale = c.scale;
        in.softcap = c.cap;
        in.dot_error = c.dot_error;
        in.value_error = c.value_error;
        if (!layer.sinks.empty()) in.sink = &layer.sinks[g];
        if (c.biases.n_heads > 0) in.biases = layer.biases.Row(c.biases, h, 0);
        oracle_attended want = {out.data(), tolerance.data(), 0.0,
                                0.0,        weights.data(),   off.data()};
        oracle_attend(&in, &want);
        const float* const got =
            &layer.out[(size_t{g} * c.n_queries + i) * (dim + 1)];
        // The device's 2^x and logarithm are off by 2 ulp.
        for (uint32_t e = 0; e < dim; ++e) {
          ExpectNear(got[e], out[e], 2.0 * tolerance[e] + lost, "out", turn, g,
                     i, e);
        }
        if (got[dim] != kGuard) Fail("case %u: written beside", turn);
        ExpectNear(layer.lse[row], want.lse, want.lse_tolerance + 1e-6, "lse",
                   turn, g, i, 0);
        for (uint32_t t = 0; t < held; ++t) {
          sums[t] += weights[t];
          tolerances[t] += 2.0 * off[t] + 2e-6 * weights[t];
        }
      }
      const bool is_last = g + 1 == (h + 1) * c.group;
      if (!has_sums || (c.sums_are_shared && !is_last)) continue;
      const uint32_t head = c.sums_are_shared ? h : g;
      for (uint32_t t = 0; t < n; ++t) {
        ExpectNear(layer.sums[size_t{t} * c.n_q_heads() + head], sums[t],
                   tolerances[t] + 1e-6 * sums[t], "sum", turn, g, 0, t);
      }
      std::fill(sums.begin(), sums.end(), 0.0);
      std::fill(tolerances.begin(), tolerances.end(), 0.0);
    }
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_ATTENTION_CASE_H_
