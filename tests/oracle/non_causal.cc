#include "tests/oracle/non_causal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/oracle/reduce.h"
#include "tests/oracle/scores.h"

using kvevict::oracle::Reduce;

namespace {

// weights[token] of a query head.
std::vector<double> WeightsOf(const oracle_non_causal* in, uint32_t head,
                              uint32_t chunk) {
  std::vector<double> weights(in->n_tokens, 0.0);
  for (uint32_t query = 0; query < in->n_tokens; ++query) {
    const uint32_t first = query - query % chunk;
    std::vector<double> e;
    for (uint32_t key = first; key < in->n_tokens && key < first + chunk;
         ++key) {
      const float* q =
          in->queries + (size_t{head} * in->n_tokens + query) * in->head_dim;
      const float* k = in->keys + size_t{key} * in->head_dim;
      double dot = 0.0;
      for (uint32_t d = 0; d < in->head_dim; ++d) {
        dot += static_cast<double>(q[d]) * k[d];
      }
      e.push_back(dot);
    }
    const double highest = *std::max_element(e.begin(), e.end());
    double sum = 0.0;
    for (double& v : e) sum += v = std::exp(v - highest);
    for (size_t i = 0; i < e.size(); ++i) weights[first + i] += e[i] / sum;
  }
  return weights;
}

}  // namespace

void oracle_non_causal_scores(const oracle_non_causal* in,
                              const oracle_policy* policy, double* scores) {
  const uint32_t n = in->n_tokens;
  const auto pool = [&](std::vector<double>& row) {
    const std::vector<double> before = row;
    oracle_pool(before.data(), n, policy, row.data());
  };
  std::vector<std::vector<double>> rows;
  for (uint32_t g = 0; g < in->group; ++g) {
    rows.push_back(WeightsOf(in, g, policy->block));
    if (policy->order == ORACLE_ORDER_POOL_REDUCE) {
      pool(rows.back());
    }
  }
  std::vector<double> row(n);
  for (uint32_t t = 0; t < n; ++t) {
    std::vector<double> terms;
    for (const auto& of_head : rows) terms.push_back(of_head[t]);
    row[t] = Reduce(terms, policy->group);
  }
  if (policy->order == ORACLE_ORDER_REDUCE_POOL) pool(row);
  for (uint32_t t = 0; t < n && in->token_weights != nullptr; ++t) {
    row[t] = (row[t] + policy->epsilon) * in->token_weights[t];
  }
  if (policy->order == ORACLE_ORDER_WEIGH_POOL) pool(row);
  std::copy(row.begin(), row.end(), scores);
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
