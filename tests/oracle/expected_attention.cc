#include "tests/oracle/expected_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/oracle/scores.h"

namespace kvevict::oracle {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of f32

struct Logit {
  double value;
  double error;  // in f32
};

// Sums of head_dim products lose head_dim units of the sum of magnitudes: the mean
// once, the covariance twice. The factors and the additions lose 8 units.
Logit LogitOf(const ExpectedAttentionInput& in, uint32_t head, const float* k) {
  const size_t dim = in.head_dim;
  const double half = 0.5 * double{in.scale} * in.scale;
  double mean = 0.0, mean_size = 0.0, square = 0.0, square_size = 0.0;
  for (size_t i = 0; i < dim; ++i) {
    const double product = double{in.mean[head * dim + i]} * k[i];
    mean += product;
    mean_size += std::abs(product);
    for (size_t j = 0; j < dim && !in.covariance.empty(); ++j) {
      const double c = in.covariance[(head * dim + i) * dim + j];
      square += k[i] * c * k[j];
      square_size += std::abs(k[i] * c * k[j]);
    }
  }
  const auto n = static_cast<double>(dim);
  return {in.scale * mean + half * square,
          kUnit * ((n + 8) * std::abs(double{in.scale}) * mean_size +
                   (2 * n + 8) * half * square_size)};
}

}  // namespace

// An exponential is off by its logit's error, by 3 units of the distance to the highest
// logit (a difference, a factor and their product) and by 4 units of its own. The sum
// is off by the mean of that and by its additions. The rest is 4 units.
ExpectedAttentionResult ExpectedAttention(const ExpectedAttentionInput& in) {
  const size_t n = in.n_tokens;
  ExpectedAttentionResult out;
  out.weights.assign(in.group * n, 0.0);
  out.tolerance.assign(in.group * n, 0.0);
  for (uint32_t head = 0; head < in.group; ++head) {
    std::vector<Logit> logits;
    double most = -std::numeric_limits<double>::infinity();
    bool has_nan = false;
    for (size_t t = in.n_sink; t < n; ++t) {
      logits.push_back(LogitOf(in, head, &in.keys[t * in.head_dim]));
      if (!in.biases.empty()) {
        Logit& logit = logits.back();
        logit.error += kUnit * (std::abs(logit.value) +
                                2 * std::abs(double{in.biases[t]}));
        logit.value += in.biases[t];
      }
      has_nan = has_nan || std::isnan(logits.back().value);
      most = std::max(most, logits.back().value);
    }
    // Biases may hide all keys, which then weigh nothing.
    const bool hides_all =
        !in.biases.empty() && std::isinf(most) && most < 0 && !has_nan;
    if (hides_all) continue;
    double sum = 0.0, sum_error = 0.0;
    for (Logit& logit : logits) {
      const double e = std::exp(logit.value - most);
      if (std::isfinite(logit.value)) {
        logit.error += kUnit * (3 * std::abs(logit.value - most) + 4);
      } else {
        logit.error = 0.0;
      }
      sum += e;
      sum_error += e * logit.error;
    }
    for (size_t t = in.n_sink; t < n; ++t) {
      const Logit& logit = logits[t - in.n_sink];
      const double weight =
          has_nan ? std::nan("") : std::exp(logit.value - most) / sum;
      const double error =
          logit.error + sum_error / sum + kUnit * (in.sum_steps + 4);
      out.weights[head * n + t] = weight;
      // Exponentials under 2^-126 may become 0.
      out.tolerance[head * n + t] = weight * std::expm1(error) + 0x1p-120;
    }
  }
  return out;
}

}  // namespace kvevict::oracle

void oracle_expected_rows(uint32_t n_tokens, uint32_t n_sink, uint32_t group,
                          uint32_t head_dim, double scale, const float* keys,
                          const float* mean, const float* covariance,
                          const float* biases, double* rows, double* bounds) {
  const size_t dim = head_dim;
  kvevict::oracle::ExpectedAttentionInput in;
  in.n_tokens = n_tokens;
  in.n_sink = n_sink;
  in.group = group;
  in.head_dim = head_dim;
  in.scale = static_cast<float>(scale);
  in.keys.assign(keys, keys + n_tokens * dim);
  in.mean.assign(mean, mean + group * dim);
  if (covariance != nullptr) {
    in.covariance.assign(covariance, covariance + group * dim * dim);
  }
  if (biases != nullptr) in.biases.assign(biases, biases + n_tokens);
  in.sum_steps = n_tokens;
  const auto result = kvevict::oracle::ExpectedAttention(in);
  std::copy(result.weights.begin(), result.weights.end(), rows);
  std::copy(result.tolerance.begin(), result.tolerance.end(), bounds);
}
