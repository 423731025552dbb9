#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/oracle/numbers.h"
#include "tests/oracle/scores.h"

namespace {

struct Logit {
  double value;
  double error;  // in f32
};

// Returns the logit of one query head and its error. Sums of head_dim products lose head_dim units of the sum of
// magnitudes: the mean once, the covariance twice. The factors and the additions lose 8
// units.
Logit LogitOf(size_t dim, double scale, const float* k, const float* mean,
              const float* covariance) {
  const double half = 0.5 * scale * scale;
  double first = 0.0, first_size = 0.0, square = 0.0, square_size = 0.0;
  for (size_t i = 0; i < dim; ++i) {
    const double product = double{mean[i]} * k[i];
    first += product;
    first_size += std::abs(product);
    for (size_t j = 0; j < dim && covariance != nullptr; ++j) {
      const double c = covariance[i * dim + j];
      square += k[i] * c * k[j];
      square_size += std::abs(k[i] * c * k[j]);
    }
  }
  const auto n = static_cast<double>(dim);
  return {scale * first + half * square,
          kUnit * ((n + 8) * std::abs(scale) * first_size +
                   (2 * n + 8) * half * square_size)};
}

}  // namespace

// An exponential is off by its logit's error, by 3 units of the distance to the highest
// logit (a difference, a factor and their product) and by 4 units of its own. The sum
// is off by the mean of that and by its additions. The rest is 4 units.
void oracle_expected_rows(uint32_t n_tokens, uint32_t n_sink, uint32_t group,
                          uint32_t head_dim, double scale, const float* keys,
                          const float* mean, const float* covariance,
                          const float* biases, double* rows, double* bounds) {
  const size_t n = n_tokens, dim = head_dim;
  std::fill(rows, rows + group * n, 0.0);
  std::fill(bounds, bounds + group * n, 0.0);
  for (uint32_t head = 0; head < group; ++head) {
    std::vector<Logit> logits;
    double most = -std::numeric_limits<double>::infinity();
    bool has_nan = false;
    for (size_t t = n_sink; t < n; ++t) {
      logits.push_back(LogitOf(
          dim, double{static_cast<float>(scale)}, keys + t * dim,
          mean + head * dim,
          covariance == nullptr ? nullptr : covariance + head * dim * dim));
      if (biases != nullptr) {
        Logit& logit = logits.back();
        logit.error +=
            kUnit * (std::abs(logit.value) + 2 * std::abs(double{biases[t]}));
        logit.value += biases[t];
      }
      has_nan = has_nan || std::isnan(logits.back().value);
      most = std::max(most, logits.back().value);
    }
    // Biases may hide all keys, which then weigh nothing.
    const bool hides_all =
        biases != nullptr && std::isinf(most) && most < 0 && !has_nan;
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
    for (size_t t = n_sink; t < n; ++t) {
      const Logit& logit = logits[t - n_sink];
      const double weight =
          has_nan ? std::nan("") : std::exp(logit.value - most) / sum;
      const double error =
          logit.error + sum_error / sum + kUnit * (n_tokens + 4.0);
      rows[head * n + t] = weight;
      // Exponentials under 2^-126 may become 0.
      bounds[head * n + t] = weight * std::expm1(error) + 0x1p-120;
    }
  }
}
