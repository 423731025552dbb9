#include "tests/oracle/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/oracle/reduce.h"

using kvevict::oracle::Reduce;

namespace {

double LogitOf(const oracle_attention* in, uint32_t head, uint32_t row,
               uint32_t key) {
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  const bool own = row < in->window;
  const float* q =
      own ? in->queries + (size_t{head} * in->window + row) * in->head_dim
          : in->reference +
                (size_t{head} * in->policy->reference + row - in->window) *
                    in->head_dim;
  const float* k =
      in->keys + (size_t{head / group} * in->n_tokens + key) * in->head_dim;
  double dot = 0.0;
  for (uint32_t d = 0; d < in->head_dim; ++d) {
    dot += static_cast<double>(q[d]) * k[d];
  }
  return dot * in->scale;
}

// R-KV: the largest logit of all query heads of the KV head.
double LargestLogit(const oracle_attention* in, uint32_t head, uint32_t row,
                    uint32_t key) {
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  std::vector<double> logits;
  for (uint32_t g = 0; g < group; ++g) {
    logits.push_back(LogitOf(in, head / group * group + g, row, key));
  }
  return Reduce(logits, KVEVICT_REDUCE_MAX);
}

// The sink of a query head, or of all whose logits are reduced.
double LargestSink(const oracle_attention* in, const oracle_policy& policy,
                   uint32_t head) {
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  if (policy.order != ORACLE_ORDER_REDUCE_LOGITS) return in->sinks[head];
  const float* const first = in->sinks + head / group * group;
  return *std::max_element(first, first + group);
}

// DefensiveKV: one row of the window pooled by itself, with the sum that it had.
void PoolRow(const oracle_policy& policy, uint32_t n, double* row) {
  std::vector<double> pooled(n);
  oracle_pool(row, n, &policy, pooled.data());
  double before = 0.0;
  double after = 0.0;
  for (uint32_t j = 0; j < n; ++j) {
    before += row[j];
    after += pooled[j];
  }
  const bool scales = policy.edge == ORACLE_EDGE_MASS &&
                      policy.pool == ORACLE_POOL_AVG && after != 0.0;
  for (uint32_t j = 0; j < n; ++j) {
    row[j] = scales ? pooled[j] / after * before : pooled[j];
  }
}

// How many slots hold positions before `position`.
uint32_t SlotsBefore(const oracle_attention* in, int64_t position) {
  uint32_t n = 0;
  for (uint32_t j = 0; j < in->n_tokens; ++j) {
    n += (in->slot_positions == nullptr ? j : in->slot_positions[j]) < position;
  }
  return n;
}

// The rows that score, and the share of each in a sum over them.
struct Row {
  uint32_t number;
  double factor;
};
std::vector<Row> RowsOf(const oracle_attention* in, const oracle_policy& p) {
  std::vector<Row> rows;
  const bool is_mean = p.rows == KVEVICT_REDUCE_MEAN;
  const auto add = [&](uint32_t first, uint32_t n, double share) {
    for (uint32_t r = 0; r < n && share > 0.0; ++r) {
      rows.push_back({first + r, is_mean ? share / n : share});
    }
  };
  add(0, in->window, p.reference == 0 ? 1.0 : 1.0 - p.reference_weight);
  add(in->window, p.reference, p.reference_weight);
  return rows;
}

}  // namespace

void oracle_row_weights(const oracle_attention* in, uint32_t head, uint32_t row,
                        double* weights) {
  oracle_policy policy = {};
  if (in->policy != nullptr) policy = *in->policy;
  uint32_t n_past = in->n_tokens - in->window + row;
  uint32_t n_visible = n_past + 1;
  if (row >= in->window) {
    const int64_t position = in->reference_positions == nullptr
                                 ? INT64_MAX - 1
                                 : in->reference_positions[row - in->window];
    n_past = SlotsBefore(in, position);
    n_visible = SlotsBefore(in, position + 1);
  }
  if (policy.softmax == ORACLE_SOFTMAX_PAST) {
    n_visible = std::min(n_visible, in->n_tokens - in->window);
  }
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  const float* const biases =
      in->biases == nullptr ? nullptr
                            : in->biases + size_t{head / group} * in->n_tokens;
  std::fill(weights, weights + in->n_tokens, 0.0);
  double highest = -std::numeric_limits<double>::infinity();
  for (uint32_t j = 0; j < n_visible; ++j) {
    weights[j] = policy.order == ORACLE_ORDER_REDUCE_LOGITS
                     ? LargestLogit(in, head, row, j)
                     : LogitOf(in, head, row, j);
    if (in->softcap != 0.0) {
      weights[j] = in->softcap * std::tanh(weights[j] / in->softcap);
    }
    if (biases != nullptr) weights[j] += biases[j];
    highest = std::max(highest, weights[j]);
  }
  double sum = 0.0;
  if (in->sinks != nullptr) {
    const double sink = LargestSink(in, policy, head);
    const double before = highest;
    highest = std::max(highest, sink);
    sum = sink == before && std::isinf(sink) ? 0.0 : std::exp(sink - highest);
  }
  // Biases may hide all that a row sees, which then adds nothing.
  const bool hides_all = biases != nullptr && highest == -INFINITY;
  if (hides_all) highest = 0.0;
  for (uint32_t j = 0; j < n_visible; ++j) {
    sum += weights[j] = std::exp(weights[j] - highest);
  }
  if (hides_all && sum == 0.0) sum = 1.0;
  const bool weighed = policy.row_weight == ORACLE_ROW_WEIGHT_PAST;
  for (uint32_t j = 0; j < n_visible; ++j) {
    weights[j] = weights[j] / sum * (weighed ? n_past : 1.0);
  }
}

void oracle_window_weights(const oracle_attention* in, double* weights) {
  oracle_policy policy = {};
  if (in->policy != nullptr) policy = *in->policy;
  const std::vector<Row> scoring = RowsOf(in, policy);
  std::vector<std::vector<double>> rows(scoring.size(),
                                        std::vector<double>(in->n_tokens));
  for (uint32_t h = 0; h < in->n_q_heads; ++h) {
    for (size_t w = 0; w < scoring.size(); ++w) {
      oracle_row_weights(in, h, scoring[w].number, rows[w].data());
      // Without reference queries the shape divides a sum by the window.
      for (double& weight : rows[w]) {
        if (policy.reference > 0) weight *= scoring[w].factor;
      }
      if (policy.order != ORACLE_ORDER_POOL_ROWS) continue;
      PoolRow(policy, in->n_tokens - (policy.keep_window ? in->window : 0),
              rows[w].data());
    }
    for (uint32_t j = 0; j < in->n_tokens; ++j) {
      std::vector<double> of_key;
      for (const auto& row : rows) of_key.push_back(row[j]);
      double& out = weights[size_t{h} * in->n_tokens + j];
      out = Reduce(of_key, policy.rows == KVEVICT_REDUCE_MAX
                               ? KVEVICT_REDUCE_MAX
                               : KVEVICT_REDUCE_SUM);
      // CAKE: mean + gamma * variance, here of sums.
      if (policy.spread == 0.0) continue;
      out += policy.spread * in->window *
             oracle_variance(of_key.data(), in->window);
    }
  }
}

void oracle_add_spread_bounds(const oracle_attention* in, double tolerance,
                              double* bounds) {
  const uint32_t n = in->n_tokens, window = in->window;
  std::vector<std::vector<double>> rows(window, std::vector<double>(n));
  for (uint32_t h = 0; h < in->n_q_heads; ++h) {
    for (uint32_t w = 0; w < window; ++w) {
      oracle_row_weights(in, h, w, rows[w].data());
    }
    for (uint32_t j = 0; j < n; ++j) {
      std::vector<double> of_key;
      for (const auto& row : rows) of_key.push_back(row[j]);
      const double apart =
          oracle_variance(of_key.data(), window) * (window - 1.0);
      double mean = 0.0, squares = 0.0, off = 0.0;
      for (const double a : of_key) mean += a / window;
      for (const double a : of_key) {
        const double error = tolerance * a;
        squares += a * a;
        off += (2.0 * std::abs(a - mean) + error) * error;
      }
      // Sums of up to 64 squares may be off by as many units.
      off +=
          0x1p-24 * ((16.0 + 4.0 * std::sqrt(window)) * squares + 8.0 * apart);
      const double nothing = 0x1p-17 * squares;
      if (apart <= nothing + off) off += nothing;
      bounds[size_t{h} * n + j] +=
          in->policy->spread * window * off / (window - 1.0);
    }
  }
}

double oracle_variance(const double* values, uint32_t n) {
  double mean = 0.0;
  for (uint32_t i = 0; i < n; ++i) mean += values[i] / n;
  double squares = 0.0;
  for (uint32_t i = 0; i < n; ++i)
    squares += (values[i] - mean) * (values[i] - mean);
  return squares / (n - 1);
}

void oracle_pool(const double* in, uint32_t n, const oracle_policy* policy,
                 double* out) {
  const int64_t half = policy->pool_width / 2;
  for (int64_t i = 0; i < n; ++i) {
    if (policy->pool == ORACLE_POOL_NONE) {
      out[i] = in[i];
      continue;
    }
    std::vector<double> terms;
    for (int64_t j = i - half; j <= i + half; ++j) {
      if (j >= 0 && j < n) terms.push_back(in[j]);
    }
    if (policy->pool == ORACLE_POOL_MAX) {
      out[i] = Reduce(terms, KVEVICT_REDUCE_MAX);
    } else {
      const double width = policy->edge == ORACLE_EDGE_SHRINK
                               ? static_cast<double>(terms.size())
                               : policy->pool_width;
      out[i] = Reduce(terms, KVEVICT_REDUCE_SUM) / width;
    }
  }
}

void oracle_raise_to_mean(double* scores, uint32_t n) {
  double mean = 0.0;
  for (uint32_t j = 0; j < n; ++j) mean += scores[j] / n;
  if (!std::isfinite(mean)) return;
  for (uint32_t j = 0; j < n; ++j) {
    if (scores[j] < mean) scores[j] = mean;
  }
}

void oracle_shape(const oracle_policy* policy, uint32_t group, uint32_t stride,
                  uint32_t n, uint32_t n_past, const double* rows,
                  const double* token_weights, double* scores) {
  const auto pool = [&](std::vector<double>& row) {
    const std::vector<double> before = row;
    oracle_pool(before.data(), n_past, policy, row.data());
  };
  const auto weigh = [&](std::vector<double>& row) {
    for (uint32_t j = 0; j < n_past && token_weights != nullptr; ++j) {
      if (row[j] == INFINITY) continue;  // it must stay
      row[j] = (row[j] + policy->epsilon) * token_weights[j];
    }
  };
  std::vector<std::vector<double>> each;
  for (uint32_t g = 0; g < group; ++g) {
    const double* const row = rows + size_t{g} * stride;
    each.emplace_back(row, row + n_past);
    if (policy->order == ORACLE_ORDER_POOL_REDUCE) pool(each.back());
  }
  std::vector<double> out(n_past);
  for (uint32_t j = 0; j < n_past; ++j) {
    std::vector<double> terms;
    for (const auto& row : each) terms.push_back(row[j]);
    out[j] = Reduce(terms, policy->group);
  }
  const bool weigh_first = policy->order == ORACLE_ORDER_WEIGH_POOL;
  const bool is_pooled = policy->order == ORACLE_ORDER_POOL_REDUCE ||
                         policy->order == ORACLE_ORDER_POOL_ROWS;
  if (weigh_first) weigh(out);
  if (!is_pooled) pool(out);
  if (policy->prior == ORACLE_PRIOR_MEAN) {
    oracle_raise_to_mean(out.data(), n_past);
  }
  if (!weigh_first) weigh(out);
  std::fill(scores, scores + n, std::numeric_limits<double>::infinity());
  std::copy(out.begin(), out.end(), scores);
}

void oracle_shape_scores(const oracle_policy* policy,
                         const oracle_attention* in, const double* weights,
                         double* scores) {
  const uint32_t n = in->n_tokens;
  const uint32_t group = in->n_q_heads / in->n_kv_heads;
  std::vector<double> rows(weights, weights + size_t{in->n_q_heads} * n);
  if (policy->rows == KVEVICT_REDUCE_MEAN && policy->reference == 0) {
    for (double& weight : rows) weight /= in->window;
  }
  for (uint32_t kv = 0; kv < in->n_kv_heads; ++kv) {
    oracle_shape(policy, group, n, n, policy->keep_window ? n - in->window : n,
                 rows.data() + size_t{kv} * group * n, nullptr,
                 scores + size_t{kv} * n);
  }
}
