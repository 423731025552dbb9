#include "tests/oracle/non_causal.h"

#include <algorithm>
#include <cmath>
#include <vector>

void oracle_non_causal_rows(uint32_t group, uint32_t stride, uint32_t n_tokens,
                            uint32_t head_dim, const float* queries,
                            const float* keys, const float* biases,
                            uint32_t chunk, double* rows) {
  std::fill(rows, rows + size_t{group} * n_tokens, 0.0);
  for (uint32_t i = 0; i < group * n_tokens; ++i) {
    const uint32_t head = i / n_tokens, query = i % n_tokens;
    const float* const q = queries + (size_t{head} * stride + query) * head_dim;
    const uint32_t first = query - query % chunk;
    std::vector<double> e;
    for (uint32_t key = first; key < n_tokens && key < first + chunk; ++key) {
      double dot = 0.0;
      for (uint32_t d = 0; d < head_dim; ++d) {
        dot += static_cast<double>(q[d]) * keys[size_t{key} * head_dim + d];
      }
      e.push_back(biases == nullptr ? dot : dot + biases[key]);
    }
    // Biases may hide all that a row sees, which then adds nothing.
    const double most = *std::max_element(e.begin(), e.end());
    const bool hides_all = biases != nullptr && most == -INFINITY;
    double sum = 0.0;
    for (double& v : e) sum += v = std::exp(v - (hides_all ? 0.0 : most));
    if (hides_all && sum == 0.0) sum = 1.0;
    for (size_t k = 0; k < e.size(); ++k) {
      rows[size_t{head} * n_tokens + first + k] += e[k] / sum;
    }
  }
}

void oracle_normalise(double* scores, uint64_t n) {
  double mean = 0.0;
  for (uint64_t i = 0; i < n; ++i) mean += scores[i] / static_cast<double>(n);
  double squares = 0.0;
  for (uint64_t i = 0; i < n; ++i) {
    squares += (scores[i] - mean) * (scores[i] - mean);
  }
  const double deviation =
      std::max(std::sqrt(squares / (static_cast<double>(n) - 1.0)), 1e-6);
  for (uint64_t i = 0; i < n; ++i) scores[i] = (scores[i] - mean) / deviation;
}
