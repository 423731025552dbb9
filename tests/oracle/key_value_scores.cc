#include "tests/oracle/key_value_scores.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/oracle/numbers.h"

namespace {

// A number and how far the library's may be from it.
struct Bounded {
  double value;
  double error;
};

// One kind of rows.
struct Tensor {
  const float* rows;
  uint32_t dim;

  double At(uint32_t token, uint32_t channel) const {
    return rows[size_t{token} * dim + channel];
  }
};

// The deviation of a row against the partition that begins at `next`.
//
// x' - 1/2 comes of four roundings, so it is off by u (4 |x' - 1/2| + 2). Its sum
// and sum of squares are added in at most 12 + dim / 128 steps.
Bounded Spread(const Tensor& t, uint32_t token, uint32_t next, uint32_t n) {
  double sum = 0.0, squares = 0.0, sum_size = 0.0;
  double sum_error = 0.0, squares_error = 0.0;
  std::vector<double> all;
  for (uint32_t c = 0; c < t.dim; ++c) {
    double least = kInfinity, greatest = -kInfinity;
    for (uint32_t i = next; i < next + n; ++i) {
      least = std::fmin(least, t.At(i, c));
      greatest = std::fmax(greatest, t.At(i, c));
    }
    const double range = greatest - least;
    const bool has_range = range > 0x1p-128 && range < 3.4e38;
    const double x =
        has_range ? (t.At(token, c) - least) / range : t.At(token, c) * 0.0;
    const double v = std::abs(x - 0.5);
    const double error = kUnit * (4 * v + 2);
    all.push_back(x);
    sum += x;
    sum_size += v;
    sum_error += error;
    squares += v * v;
    squares_error += 2 * v * error;
  }
  const double mean = sum / t.dim;
  double rest = 0.0;
  for (double x : all) rest += (x - mean) * (x - mean);
  const double n_steps = 14 + t.dim / 128.0;
  sum_error += n_steps * kUnit * sum_size;
  squares_error += n_steps * kUnit * squares;
  const double error =
      squares_error +
      2 * sum_size / t.dim * (sum_error + 2 * kUnit * sum_size) + kUnit * rest;
  const double scale = t.dim == 1 ? 0.0 : 1.0 / (t.dim - 1);
  const double spread = std::sqrt(rest * scale);
  return {spread, std::sqrt((rest + error) * scale) -
                      std::sqrt(std::max(0.0, rest - error) * scale) +
                      4 * kUnit * spread};
}

// The softmax over those that are numbers. A weight is off by its deviation's error
// and the greatest one's, by Exp2, and by a sum of n / 16 + 4 steps and a division.
std::vector<Bounded> Weights(const Tensor& t, uint32_t first, uint32_t n) {
  std::vector<Bounded> weights;
  double greatest = 0.0, most_error = 0.0;
  for (uint32_t i = 0; i < n; ++i) {
    weights.push_back(Spread(t, first + i, first + n, n));
    if (!std::isfinite(weights[i].value)) {
      weights[i].value = std::nan("");
      continue;
    }
    greatest = std::max(greatest, weights[i].value);
    most_error = std::max(most_error, weights[i].error);
  }
  double sum = 0.0;
  for (Bounded& weight : weights) {
    weight.value = std::exp(weight.value - greatest);
    if (!std::isnan(weight.value)) sum += weight.value;
  }
  for (Bounded& weight : weights) {
    weight.value /= sum;
    weight.error = weight.value * (4 * most_error + 1e-6 + n / 16 * kUnit);
  }
  return weights;
}

// The mean of the places that the bounds allow, and how far they reach.
Bounded PlaceOf(const std::vector<Bounded>& all, uint32_t i) {
  uint32_t n_lower = 0, n_higher = 0;
  for (uint32_t j = 0; j < all.size(); ++j) {
    const double apart = all[i].value - all[j].value;
    const double error = all[i].error + all[j].error;
    n_lower += std::isnan(all[j].value) || apart > error;
    n_higher += apart < -error;
  }
  const auto n = static_cast<double>(all.size());
  const double most = n - 1 - n_higher;
  return {(n_lower + most) / 2 / n, (most - n_lower) / 2 / n + 2 * kUnit};
}

}  // namespace

void oracle_lag(const oracle_rows* in, int ranks, double* scores,
                double* bounds) {
  const uint32_t n = in->block;
  const uint32_t n_sink = std::min(in->n_sink, in->n_tokens);
  const uint32_t n_ranked = in->n_tokens - n_sink;
  const Tensor tensors[] = {{in->keys, in->k_dim}, {in->values, in->v_dim}};
  for (uint32_t t = 0; t < in->n_tokens; ++t) {
    scores[t] = t >= n_sink && n_ranked / n < 2
                    ? (t - n_sink) / static_cast<double>(n_ranked)
                    : 1.0;
    bounds[t] = 2 * kUnit;
  }
  for (uint32_t first = n_sink; first + 2 * n <= in->n_tokens; first += n) {
    std::vector<Bounded> both = Weights(tensors[0], first, n);
    const std::vector<Bounded> values = Weights(tensors[1], first, n);
    for (uint32_t i = 0; i < n; ++i) {
      both[i] = {
          (both[i].value + values[i].value) / 2,
          (both[i].error + values[i].error) / 2 + 4 * kUnit * both[i].value};
    }
    for (uint32_t i = 0; i < n; ++i) {
      const bool is_number = !std::isnan(both[i].value);
      const Bounded score =
          ranks != 0 && is_number ? PlaceOf(both, i) : both[i];
      scores[first + i] = score.value;
      bounds[first + i] = score.error;
    }
  }
}

// A sum of `block` squares rounds as often, each square once. Then come two
// quotients, their product, and a quotient by a sum of the same accuracy.
void oracle_cur(const oracle_rows* in, double* scores, double* bounds) {
  const uint32_t n = in->n_tokens;
  std::vector<double> squares[2];
  for (int kind = 0; kind < 2; ++kind) {
    const uint32_t dim = kind == 0 ? in->k_dim : in->v_dim;
    const float* const rows = kind == 0 ? in->keys : in->values;
    squares[kind].resize(n);
    for (size_t i = 0; i < size_t{n} * dim; ++i) {
      squares[kind][i / dim] += double{rows[i]} * rows[i];
    }
  }
  const auto counts = [&](uint32_t t) {
    return std::isfinite(squares[0][t] + squares[1][t]);
  };
  double total = 0.0;
  for (uint32_t t = 0; t < n; ++t) {
    double of_window[2] = {0.0, 0.0};
    const uint32_t first = t / in->block * in->block;
    for (uint32_t i = first; i < n && i < first + in->block; ++i) {
      if (!counts(i)) continue;
      of_window[0] += squares[0][i];
      of_window[1] += squares[1][i];
    }
    const bool has_sums = of_window[0] > 0.0 && of_window[1] > 0.0;
    scores[t] = !counts(t) ? std::nan("")
                : has_sums ? squares[0][t] / of_window[0] *
                                 (squares[1][t] / of_window[1])
                           : 0.0;
    if (counts(t)) total += scores[t];
  }
  const double dims = in->k_dim + in->v_dim;
  for (uint32_t t = 0; t < n; ++t) {
    scores[t] = total == 0.0 ? scores[t] * 0.0 : scores[t] / total;
    bounds[t] =
        kUnit * (4.0 * std::min(in->block, n) + 50 + dims / 4.0) * scores[t];
    if (t < in->n_sink) scores[t] = 1.0;
    if (t < in->n_sink) bounds[t] = 0.0;
  }
}
