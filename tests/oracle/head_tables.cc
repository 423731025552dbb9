#include "tests/oracle/head_tables.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

// round() of all sources rounds halves to the even number, as nearbyint() does.

void oracle_duo_heads(const double* alpha, uint32_t n, double head_ratio,
                      uint8_t* streams) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::clamp(alpha[a], 0.0, 1.0) < std::clamp(alpha[b], 0.0, 1.0);
  });
  const auto n_streaming =
      static_cast<uint32_t>(std::nearbyint(n * head_ratio));
  for (uint32_t i = 0; i < n; ++i) streams[order[i]] = i < n_streaming;
}

void oracle_headkv_budgets(const double* importance, uint32_t n_layers,
                           uint32_t n_q_heads, uint32_t n_kv_heads,
                           uint32_t capacity, uint32_t window,
                           uint32_t* budgets) {
  const uint32_t n = n_layers * n_q_heads;
  const double sum = std::accumulate(importance, importance + n, 0.0);
  const double shared = std::floor(capacity / 1.01);  // C // 1.01
  const uint32_t group = n_q_heads / n_kv_heads;
  for (uint32_t kv = 0; kv < n_layers * n_kv_heads; ++kv) {
    double of_group = 0.0;
    for (uint32_t q = kv * group; q < (kv + 1) * group; ++q) {
      of_group += importance[q] / sum * shared * n + (capacity - shared);
    }
    budgets[kv] =
        static_cast<uint32_t>(std::nearbyint(of_group / group)) + window;
  }
}

void oracle_lukv_budgets(const double* prune, uint32_t n, uint32_t n_tokens,
                         uint32_t* budgets) {
  std::vector<double> kept(n);
  double sum = 0.0;
  int64_t floors = 0;
  for (uint32_t i = 0; i < n; ++i) {
    kept[i] = n_tokens * (1.0 - prune[i]);
    sum += kept[i];
    budgets[i] = static_cast<uint32_t>(std::floor(kept[i]));
    floors += budgets[i];
  }
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return kept[a] - std::floor(kept[a]) > kept[b] - std::floor(kept[b]);
  });
  const auto rest = static_cast<int64_t>(std::nearbyint(sum)) - floors;
  for (int64_t i = 0; i < rest; ++i) ++budgets[order[static_cast<size_t>(i)]];
  for (uint32_t i = 0; i < n; ++i) budgets[i] = std::max(budgets[i], 1u);
}
