#include "tests/oracle/attention.h"

#include <cmath>
#include <vector>

#include "tests/oracle/numbers.h"

namespace {

bool Sees(const oracle_query& in, int64_t t) {
  if (in.window != 0 && t <= in.slot - int64_t{in.window}) return false;
  return in.non_causal != 0 || t <= in.slot;
}

}  // namespace

void oracle_attend(const oracle_query* query, oracle_attended* out) {
  const oracle_query& in = *query;
  std::vector<double> logits(in.n_tokens, -kInfinity);
  double highest = in.sink == nullptr ? -kInfinity : double{*in.sink};
  // The error of a logit: the roundings of its products, of scaling the query and
  // of the scale, then those of the cap, of the subtraction and of 2^x.
  double most_off = 0.0;
  double reach = 0.0;
  for (uint32_t t = 0; t < in.n_tokens; ++t) {
    if (!Sees(in, t)) continue;
    double dot = 0.0, size = 0.0;
    for (uint32_t i = 0; i < in.k_dim; ++i) {
      const double product =
          double{in.query[i]} * in.keys[size_t{t} * in.k_dim + i];
      dot += product;
      size += std::fabs(product);
    }
    double x = dot * in.scale;
    const double off =
        ((in.k_dim + 6.0) * kUnit + in.dot_error) * size * std::fabs(in.scale);
    if (in.softcap != 0.0) {
      x = in.softcap * std::tanh(x / in.softcap);
      reach = std::fmax(reach, 8.0 * kUnit * in.softcap);
    }
    if (in.biases != nullptr) {
      // The bias in base 2, and the sum.
      const double bias = in.biases[t];
      const double size_of_sum = std::fabs(x) + 2.0 * std::fabs(bias);
      if (std::isfinite(size_of_sum)) {
        reach = std::fmax(reach, kUnit * (size_of_sum + 8.0 * in.softcap));
      }
      x += bias;
    }
    if (std::isfinite(off)) most_off = std::fmax(most_off, off);
    logits[t] = x;
    if (x > highest || std::isnan(x)) highest = x;
    if (std::isnan(highest)) break;
  }
  double total = 0.0, lowest = highest;
  std::vector<double> weights(in.n_tokens, 0.0);
  if (highest != -kInfinity) {
    if (in.sink != nullptr) total = std::exp(*in.sink - highest);
    for (uint32_t t = 0; t < in.n_tokens; ++t) {
      if (!Sees(in, t)) continue;
      weights[t] = std::exp(logits[t] - highest);
      total += weights[t];
      // Weights below this do not matter.
      if (logits[t] > highest - 90.0) lowest = std::fmin(lowest, logits[t]);
    }
  }
  const double spread = highest == -kInfinity ? 0.0 : highest - lowest;
  const double of_weight = most_off + reach + kUnit * (spread + 16.0);
  const double off = 2.0 * of_weight + (in.n_tokens + 64.0) * kUnit;
  for (uint32_t i = 0; i < in.v_dim; ++i) {
    double sum = 0.0, size = 0.0;
    for (uint32_t t = 0; t < in.n_tokens && total != 0.0; ++t) {
      if (!Sees(in, t)) continue;
      const double v = in.values[size_t{t} * in.value_stride + i];
      sum += weights[t] / total * v;
      size += std::fabs(weights[t] / total * v);
    }
    out->out[i] = std::isnan(total) ? total : sum;
    out->out_tolerance[i] = (off + in.value_error) * size + 0x1p-140;
  }
  out->lse = total == 0.0 ? -kInfinity : highest + std::log(total);
  out->lse_tolerance = of_weight + (in.n_tokens + 64.0) * kUnit +
                       2.0 * kUnit * std::fabs(out->lse);
  for (uint32_t t = 0; out->weights != nullptr && t < in.n_tokens; ++t) {
    const bool gets_any = Sees(in, t) && total != 0.0;
    out->weights[t] = gets_any ? weights[t] / total : 0.0;
    out->weight_tolerance[t] = off * out->weights[t] + 0x1p-120;
  }
}
