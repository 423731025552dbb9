#include "tests/oracle/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/oracle/reduce.h"

using kvevict::oracle::Reduce;

void oracle_window_weights(const oracle_attention* in, double* weights) {
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  std::fill(weights, weights + size_t{in->n_q_heads} * in->n_tokens, 0.0);
  std::vector<double> e(in->n_tokens);
  for (uint32_t h = 0; h < in->n_q_heads; ++h) {
    for (uint32_t w = 0; w < in->window; ++w) {
      const float* q =
          in->queries + (size_t{h} * in->window + w) * in->head_dim;
      const uint32_t n_visible = in->n_tokens - in->window + w + 1;
      double highest = -std::numeric_limits<double>::infinity();
      for (uint32_t j = 0; j < n_visible; ++j) {
        const float* k =
            in->keys + (size_t{h / group} * in->n_tokens + j) * in->head_dim;
        double dot = 0.0;
        for (uint32_t d = 0; d < in->head_dim; ++d) {
          dot += static_cast<double>(q[d]) * k[d];
        }
        e[j] = dot * in->scale;
        highest = std::max(highest, e[j]);
      }
      double sum = 0.0;
      for (uint32_t j = 0; j < n_visible; ++j) {
        sum += e[j] = std::exp(e[j] - highest);
      }
      for (uint32_t j = 0; j < n_visible; ++j) {
        weights[size_t{h} * in->n_tokens + j] += e[j] / sum;
      }
    }
  }
}

void oracle_pool(const double* in, uint32_t n, const kvevict_policy* policy,
                 double* out) {
  const int64_t half = policy->pool_kernel / 2;
  for (int64_t i = 0; i < n; ++i) {
    if (policy->pool == KVEVICT_POOL_NONE) {
      out[i] = in[i];
      continue;
    }
    std::vector<double> terms;
    for (int64_t j = i - half; j <= i + half; ++j) {
      if (j >= 0 && j < n) terms.push_back(in[j]);
    }
    if (policy->pool == KVEVICT_POOL_MAX) {
      out[i] = Reduce(terms, KVEVICT_REDUCE_MAX);
    } else {
      const double width = policy->pool_edge == KVEVICT_POOL_EDGE_PAD
                               ? policy->pool_kernel
                               : static_cast<double>(terms.size());
      out[i] = Reduce(terms, KVEVICT_REDUCE_SUM) / width;
    }
  }
}

void oracle_shape_scores(const kvevict_policy* policy,
                         const oracle_attention* in, const double* weights,
                         double* scores) {
  const uint32_t n = in->n_tokens;
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  const uint32_t n_past = policy->keep_window != 0 ? n - in->window : n;
  const bool pool_first =
      policy->shaping_order == KVEVICT_SHAPING_POOL_THEN_REDUCE;
  for (uint32_t kv = 0; kv < in->n_kv_heads; ++kv) {
    double* out = scores + size_t{kv} * n;
    std::fill(out, out + n, std::numeric_limits<double>::infinity());
    std::vector<std::vector<double>> rows(group, std::vector<double>(n_past));
    for (uint32_t g = 0; g < group; ++g) {
      std::vector<double> row(n_past);
      for (uint32_t j = 0; j < n_past; ++j) {
        row[j] = weights[(size_t{kv} * group + g) * n + j];
        if (policy->window_reduce == KVEVICT_REDUCE_MEAN) row[j] /= in->window;
      }
      if (pool_first) {
        oracle_pool(row.data(), n_past, policy, rows[g].data());
      } else {
        rows[g] = row;
      }
    }
    std::vector<double> reduced(n_past);
    for (uint32_t j = 0; j < n_past; ++j) {
      std::vector<double> terms;
      for (const auto& row : rows) terms.push_back(row[j]);
      reduced[j] = Reduce(terms, policy->group_reduce);
    }
    if (pool_first) {
      std::copy(reduced.begin(), reduced.end(), out);
    } else {
      oracle_pool(reduced.data(), n_past, policy, out);
    }
  }
}
