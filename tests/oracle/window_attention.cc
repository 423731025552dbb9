#include "tests/oracle/window_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvevict::oracle {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of f32

// Relative error of one row's weights when computed in f32 with unit roundoff u.
// `magnitude` is the largest sum of |q k scale| of the row.
// - A logit: 2 u from scaling the query, and the rounding of head_dim products and
//   sums, whose errors have random signs: (2 + 2 sqrt(head_dim)) u magnitude.
//   It enters twice, through the exponential and through the sum of the row.
// - Differences to the reference of a tile and of the row: 4 u magnitude.
// - Two exponentials (3.4 u each), the sum of a tile (up to 64 additions), 1 / sum, the
//   product of the two: 64 u together.
// - The sum over the window, of positive terms: sqrt(window) u.
double RowError(double magnitude, double head_dim, double window) {
  return kUnit * (magnitude * (8.0 + 4.0 * std::sqrt(head_dim)) + 64.0 +
                  std::sqrt(window));
}

// The same if dot products are off by dot_error u times `partial`, the largest
// magnitude among all their products and partial sums, times |scale|. No logit is
// larger.
// - The dot product itself, twice as above.
// - scale log2(e), 1.2 u off, by the difference of two logits: 2.4 u partial.
// - Logit less reference, rounded in both passes, and less log-sum-exp: 4 u partial.
// - Raising references from the least to the highest, within a split and from one
//   to the next: 4 u partial. Two log-sum-exps that are rounded: 2 u partial.
double RowErrorOfDots(double partial, double dot_error, double window) {
  return kUnit *
         (partial * (2.0 * dot_error + 13.0) + 64.0 + std::sqrt(window));
}

// More error for capped logits and sinks, in the same unit.
// - tanh within 2^-22 of a unit, twice; cap log2(e), 1.2 u off, by the difference of two
//   logits, and these rounded as above: 16 u softcap.
// - A sink in base 2, and less the reference: 4 u sink.
double RowErrorBeside(double softcap, double sink) {
  return kUnit *
         (16.0 * softcap + (std::isfinite(sink) ? 4.0 * std::abs(sink) : 0.0));
}

// More error for biases, in the same unit: log2(e) and the product, 2.2 u bias, and the
// sum, u (logit + bias), by the difference of two logits; then less the reference.
double RowErrorOfBiases(double bias, double magnitude) {
  return kUnit * (8.0 * bias + 2.0 * magnitude);
}

// A key's weights in the rows of a head, one after the other.
struct KeyRows {
  std::vector<double> weights;
  std::vector<double> errors;
};

// The unbiased variance as far as f32 can tell it from none: sums of up to 64 squares
// may be off by as many units. Those that only round err by the root of that.
WindowAttentionResult::Measure Variance(const KeyRows& key) {
  const auto n = static_cast<double>(key.weights.size());
  double sum = 0.0;
  double squares = 0.0;
  for (double a : key.weights) {
    sum += a;
    squares += a * a;
  }
  double apart = 0.0;
  double error = kUnit * (16.0 + 4.0 * std::sqrt(n)) * squares;
  for (size_t w = 0; w < key.weights.size(); ++w) {
    const double off = key.weights[w] - sum / n;
    apart += off * off;
    error +=
        2.0 * std::abs(off) * key.errors[w] + key.errors[w] * key.errors[w];
  }
  const double nothing = std::ldexp(squares, -17);
  WindowAttentionResult::Measure out = {apart / (n - 1), error / (n - 1)};
  if (apart <= nothing) out.value = 0.0;
  if (std::abs(apart - nothing) <= error) out.tolerance += nothing / (n - 1);
  return out;
}

}  // namespace

WindowAttentionResult WindowAttention(const WindowAttentionInput& in) {
  const size_t n = in.n_tokens;
  WindowAttentionResult out;
  // Exponentials under 2^-126 may become 0.
  const double nothing =
      (in.weigh_by_past ? double(n) : 1.0) * in.window * std::ldexp(1.0, -116);
  out.weights.assign(in.group * n, 0.0);
  out.tolerance.assign(in.group * n, nothing);
  std::vector<double> e(n);
  std::vector<KeyRows> rows_of(in.group * n);
  for (uint32_t row = 0; row < in.group * in.window; ++row) {
    const uint32_t g = row / in.window;
    const uint32_t w = row % in.window;
    const size_t n_past = n - in.window + w;
    size_t first = 0;
    size_t n_visible = in.past_only ? n - in.window : n_past + 1;
    if (in.chunk > 0) {
      first = w - w % in.chunk;
      n_visible = std::min<size_t>(n, first + in.chunk);
    }
    double highest = -std::numeric_limits<double>::infinity();
    double magnitude = 0.0;
    double partial = 0.0;
    double bias = 0.0;
    for (size_t j = first; j < n_visible; ++j) {
      const float* k = &in.keys[j * in.head_dim];
      for (uint32_t h = 0; h < in.logit_heads; ++h) {
        const size_t head = size_t{g} * in.logit_heads + h;
        const float* q = &in.queries[(head * in.window + w) * in.head_dim];
        double dot = 0.0;
        double size = 0.0;
        double largest = 0.0;
        for (uint32_t d = 0; d < in.head_dim; ++d) {
          const double term = static_cast<double>(q[d]) * k[d];
          dot += term;
          size += std::abs(term);
          largest = std::max({largest, std::abs(term), std::abs(dot)});
        }
        const double logit = dot * in.scale;
        e[j] = h == 0 || std::isnan(logit) || logit > e[j] ? logit : e[j];
        // Infinite terms make a weight exactly 0 or NaN.
        if (std::isfinite(size)) {
          magnitude = std::max(magnitude, size * std::abs(in.scale));
          partial = std::max(partial, largest * std::abs(in.scale));
        }
      }
      if (in.softcap != 0.0f) {
        e[j] = in.softcap * std::tanh(e[j] / in.softcap);
      }
      if (!in.biases.empty()) {
        e[j] += in.biases[j];
        if (std::isfinite(in.biases[j])) {
          bias = std::max(bias, std::abs(double{in.biases[j]}));
        }
      }
      highest = std::max(highest, e[j]);
    }
    double sink = -std::numeric_limits<double>::infinity();
    for (uint32_t h = 0; h < in.logit_heads && !in.sinks.empty(); ++h) {
      sink = std::max<double>(sink, in.sinks[g * in.logit_heads + h]);
    }
    highest = std::max(highest, sink);
    // Biases may hide all that a row sees, which then adds nothing.
    if (!in.biases.empty() && std::isinf(highest) && highest < 0) highest = 0.0;
    double sum = sink == highest ? 1.0 : std::exp(sink - highest);
    if (in.sinks.empty()) sum = 0.0;
    for (size_t j = first; j < n_visible; ++j) {
      sum += e[j] = std::exp(e[j] - highest);
    }
    if (!in.biases.empty() && sum == 0.0) sum = 1.0;
    double error = in.dot_error > 0.0
                       ? RowErrorOfDots(partial, in.dot_error, in.window)
                       : RowError(magnitude, in.head_dim, in.window);
    // In the exponential and in the sum of the row.
    error += 2.0 * in.query_error * magnitude;
    error += RowErrorBeside(in.softcap, sink);
    if (!in.biases.empty()) error += RowErrorOfBiases(bias, magnitude);
    // A logarithm of up to 31 and a difference, or a product.
    if (in.weigh_by_past) error += 64.0 * kUnit;
    const double factor = in.weigh_by_past ? static_cast<double>(n_past) : 1.0;
    for (size_t j = first; j < n_visible; ++j) {
      double& weight = out.weights[g * n + j];
      double& tolerance = out.tolerance[g * n + j];
      const double of_row = e[j] / sum * factor;
      if (in.max_of_rows) {
        weight = std::isnan(of_row) || of_row > weight ? of_row : weight;
        tolerance = std::max(tolerance, nothing + of_row * error);
      } else {
        weight += of_row;
        tolerance += of_row * error;
      }
    }
    for (size_t j = 0; j < n; ++j) {
      const double a = j < n_visible ? e[j] / sum * factor : 0.0;
      rows_of[g * n + j].weights.push_back(a);
      rows_of[g * n + j].errors.push_back(a * error + nothing);
      if (j >= n - in.window) continue;
      // The logarithm, the product, and sums of at most 2^12 terms.
      const double log = std::log(a + 1e-10);
      out.entropy.value -= a * log;
      out.entropy.tolerance += (a * error + nothing) * (std::abs(log) + 1.0) +
                               kUnit * 64.0 * std::abs(a * log);
      if (j >= in.n_first && j + in.window + in.n_last < n) continue;
      out.ends.value += a;
      out.ends.tolerance += a * (error + kUnit * 64.0) + nothing;
    }
  }
  for (size_t i = 0; in.window > 1 && i < in.group * n; ++i) {
    const WindowAttentionResult::Measure variance = Variance(rows_of[i]);
    if (i % n < n - in.window) {
      out.variance.value += variance.value;
      out.variance.tolerance +=
          variance.tolerance + kUnit * 64.0 * variance.value;
    }
    if (in.spread == 0.0f) continue;
    const double factor = double{in.spread} * in.window;
    out.weights[i] += factor * variance.value;
    out.tolerance[i] +=
        factor * (variance.tolerance + kUnit * 8.0 * variance.value);
  }
  return out;
}

}  // namespace kvevict::oracle
