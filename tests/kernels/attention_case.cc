#include "tests/kernels/attention_case.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/window_attention.h"

namespace kvevict {

oracle::WindowAttentionInput RandomInput(uint32_t n_tokens, uint32_t window,
                                         uint32_t group, uint32_t head_dim,
                                         Random& random, DType queries,
                                         DType keys) {
  oracle::WindowAttentionInput in;
  in.n_tokens = n_tokens;
  in.window = window;
  in.group = group;
  in.head_dim = head_dim;
  in.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  in.queries.resize(size_t{group} * window * head_dim);
  in.keys.resize(size_t{n_tokens} * head_dim);
  for (float& q : in.queries) q = random.Gaussian();
  for (float& k : in.keys) k = random.Gaussian();
  for (uint32_t j = 0; j < n_tokens; ++j) {
    if (random.Below(50) != 0) continue;
    const size_t row = random.Below(group * window);
    for (uint32_t d = 0; d < head_dim; ++d) {
      in.keys[size_t{j} * head_dim + d] +=
          0.5f * in.queries[row * head_dim + d];
    }
  }
  in.queries = RoundTo(queries, std::move(in.queries));
  in.keys = RoundTo(keys, std::move(in.keys));
  return in;
}

std::vector<float> RunKernel(SimdTarget simd,
                             const oracle::WindowAttentionInput& in,
                             const RowLayout& query_layout,
                             const RowLayout& key_layout, size_t scratch_less,
                             std::optional<Reduce> group_reduce,
                             const std::vector<float>& lse,
                             WindowMeasure* measure) {
  // Query row w of all heads of the group is one row of the store.
  const uint32_t n_heads = in.group * in.logit_heads;
  std::vector<float> query_rows(in.queries.size());
  for (uint32_t g = 0; g < n_heads; ++g) {
    for (uint32_t w = 0; w < in.window; ++w) {
      std::memcpy(&query_rows[(size_t{w} * n_heads + g) * in.head_dim],
                  &in.queries[(size_t{g} * in.window + w) * in.head_dim],
                  in.head_dim * sizeof(float));
    }
  }
  const RowStore queries(query_rows, n_heads * in.head_dim, query_layout);
  // Nobody uses the keys before the first one.
  constexpr uint32_t kBefore = 3;
  std::vector<float> key_rows(size_t{kBefore} * in.head_dim,
                              std::numeric_limits<float>::quiet_NaN());
  key_rows.insert(key_rows.end(), in.keys.begin(), in.keys.end());
  const RowStore keys(key_rows, in.head_dim, key_layout);

  std::vector<float> biases(kBefore, std::numeric_limits<float>::quiet_NaN());
  biases.insert(biases.end(), in.biases.begin(), in.biases.end());
  const RowStore bias_rows(biases, 1, RowLayout{});

  const WindowAttentionScratchSize size = WindowAttentionScratchBytes(
      in.n_tokens, in.window, in.group, in.head_dim, in.logit_heads);
  cr_assert(size.least % 64 == 0 && size.best % 64 == 0);
  const size_t scratch_bytes =
      size.best - std::min(size.best - size.least, scratch_less);
  const GuardedPages scratch(scratch_bytes);
  std::memset(scratch.data(), 0xFF, scratch_bytes);
  const size_t n_out = group_reduce ? 1 : in.group;
  std::vector<float> weights(n_out * in.n_tokens);
  const GuardedPages out(weights.size() * sizeof(float));

  WindowAttention args;
  args.queries = queries.source();
  args.query_head_stride =
      int64_t{in.head_dim} * queries.source().element_stride;
  args.keys = keys.source();
  args.first_key = kBefore;
  args.n_tokens = in.n_tokens;
  args.window = in.window;
  args.group = in.group;
  args.head_dim = in.head_dim;
  args.scale = in.scale;
  args.softcap = in.softcap;
  if (!in.biases.empty()) args.biases = bias_rows.source();
  if (!in.sinks.empty()) args.sinks = in.sinks.data();
  args.rows = {.all_keys = in.chunk > 0,
               .past_only = in.past_only,
               .weigh_by_past = in.weigh_by_past,
               .max_of_rows = in.max_of_rows,
               .logit_heads = in.logit_heads,
               .spread = in.spread};
  args.measure = measure;
  if (!lse.empty()) args.lse = lse.data();
  args.lse_row_stride = sizeof(float);
  args.lse_head_stride = int64_t{in.window} * int64_t{sizeof(float)};
  args.out = reinterpret_cast<float*>(out.data());
  args.out_stride = in.n_tokens;
  args.group_reduce = group_reduce;
  args.scratch = scratch.data();
  args.scratch_bytes = scratch_bytes;
  ComputeWindowAttention(simd, args);
  std::memcpy(weights.data(), out.data(), weights.size() * sizeof(float));
  return weights;
}

void ExpectWeights(const oracle::WindowAttentionInput& in,
                   const oracle::WindowAttentionResult& expected,
                   const std::vector<float>& weights, const char* target) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const double error = std::abs(weights[i] - expected.weights[i]);
    const bool is_right = std::isnan(expected.weights[i])
                              ? std::isnan(weights[i])
                              : error <= expected.tolerance[i];
    cr_assert(is_right,
              "%s: %u tokens, window %u, group %u, head_dim %u: head %zu key "
              "%zu is %.9g, expected %.9g, tolerance %.3g",
              target, in.n_tokens, in.window, in.group, in.head_dim,
              i / in.n_tokens, i % in.n_tokens, static_cast<double>(weights[i]),
              expected.weights[i], expected.tolerance[i]);
  }
}

bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace kvevict
