#include "tests/oracle/query_centers.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "tests/oracle/numbers.h"

namespace {

constexpr int kDistances = 17;  // 1, 2, 4 .. 65536

using Complex = std::complex<double>;

Complex KeyPair(const oracle_centers& in, uint32_t token, uint32_t f) {
  const float* const key = in.keys + size_t{token} * in.head_dim;
  if (in.is_interleaved != 0) return {key[2 * f], key[2 * f + 1]};
  return {key[f], key[f + in.n_pairs]};
}

struct Score {
  double value = 0.0;
  double error = 0.0;
};

// A head's products lose a unit of their size for each addition, three per pair and
// a few more, and for each of their factors: 16 in all.
Score ScoreOf(const oracle_centers& in, uint32_t token, const float* center) {
  const double position = in.positions == nullptr ? token : in.positions[token];
  const uint32_t n = in.n_pairs;
  Score score;
  double size = 0.0;
  for (uint32_t f = 0; f < n; ++f) {
    const double w = in.inv_freq[f];
    const Complex q(center[f], center[n + f]);
    const double length = center[2 * n + f];
    const Complex before =
        KeyPair(in, token, f) * std::polar(1.0, -w * position);
    const double angle = std::arg(q * std::conj(before));
    double mean = 0.0;
    for (int d = 0; d < kDistances; ++d) {
      const double ahead = in.n_seen - position + std::ldexp(1.0, d);
      mean += std::cos(w * ahead + angle) / kDistances;
    }
    const double key = std::abs(before);
    score.value +=
        std::abs(q) * key * mean + std::max(0.0, length - std::abs(q)) * key;
    size += (2 * std::abs(q) + length) * key;
  }
  score.error = kUnit * (3.0 * n + 16) * size;
  return score;
}

}  // namespace

// A score is off by its own error, by the mean's, and by the deviation's times its
// distance from the mean. Both are off by no more than the worst score, and by a
// unit of their sum for each addition that follows another.
void oracle_query_centers(const oracle_centers* in, double* raw, double* scores,
                          double* bounds) {
  const uint32_t n = in->n_tokens;
  const double steps = std::min(n, 512u) + 16.0;
  for (uint32_t head = 0; head < in->group; ++head) {
    const float* const center = in->centers + head * in->center_stride;
    std::vector<Score> row(n);
    double count = 0.0, sum = 0.0, square = 0.0, worst = 0.0;
    for (uint32_t t = in->n_sink; t < n; ++t) {
      row[t] = ScoreOf(*in, t, center);
      if (!std::isfinite(row[t].value)) continue;
      count += 1.0;
      sum += row[t].value;
      worst = std::max(worst, row[t].error);
    }
    const double mean = sum / count;
    for (uint32_t t = in->n_sink; t < n; ++t) {
      if (!std::isfinite(row[t].value)) continue;
      square += (row[t].value - mean) * (row[t].value - mean);
    }
    const double deviation = std::max(std::sqrt(square / count), 1e-6);
    for (uint32_t t = 0; t < n; ++t) {
      const size_t at = size_t{head} * n + t;
      const bool is_sink = t < in->n_sink;
      const bool is_number = std::isfinite(row[t].value);
      const double z = (row[t].value - mean) / deviation;
      if (raw != nullptr) raw[at] = row[t].value;
      scores[at] = is_sink ? 0.0 : is_number ? z : std::nan("");
      bounds[at] = 0.0;
      if (is_sink) continue;
      bounds[at] = (row[t].error + worst) / deviation + kUnit * steps +
                   std::abs(z) * (worst / deviation + kUnit * (steps + 4));
    }
  }
}
