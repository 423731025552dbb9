#include "tests/oracle/fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/oracle/inverse.h"
#include "tests/oracle/numbers.h"

namespace {

using kvevict::oracle::Inverse;
using kvevict::oracle::Row;
using kvevict::oracle::Rows;

// Biases of the listed slots, or none.
using Biases = std::vector<float>;

// Natural logits of a query and the listed keys. *error: the most that f32 is off.
Row Logits(const oracle_fit* in, uint32_t query,
           const std::vector<int32_t>& list, const Biases& biases,
           double* error) {
  const float* q = in->queries + size_t{query} * in->key_dim;
  Row logits;
  for (const int32_t slot : list) {
    const float* k = in->keys + size_t(slot) * in->key_dim;
    double sum = 0.0, size = 0.0;
    for (uint32_t e = 0; e < in->key_dim; ++e) {
      sum += double{q[e]} * k[e];
      size += std::fabs(double{q[e]} * k[e]);
    }
    double x = sum * in->scale;
    // Each product and sum is rounded; so are the scaled query, and the logit
    // less the largest one.
    *error = std::max(*error, size * in->scale * (in->key_dim + 6) * kUnit);
    if (in->softcap != 0.0) {
      x = in->softcap * std::tanh(x / in->softcap);
      *error +=
          0x1p-21 * in->softcap;  // that of tanh, see core/kernels/cap-inl.h
    }
    if (!biases.empty()) {
      // The bias in base 2 and the sum are rounded.
      const double bias = biases[logits.size()];
      *error += (std::fabs(x) + 3 * std::fabs(bias)) * kUnit;
      x += bias;
    }
    logits.push_back(x);
  }
  return logits;
}

// Weights of the listed keys. *error: their relative error in f32.
Row Weights(const oracle_fit* in, uint32_t query,
            const std::vector<int32_t>& list, const Biases& biases,
            double* error) {
  double logit_error = 0.0;
  Row w = Logits(in, query, list, biases, &logit_error);
  double most = *std::max_element(w.begin(), w.end());
  if (in->sinks != nullptr) most = std::max(most, double{in->sinks[query]});
  double total = in->sinks == nullptr ? 0.0 : std::exp(in->sinks[query] - most);
  for (double& x : w) total += x = std::exp(x - most);
  for (double& x : w) x /= total;
  // The errors of the logit and of the sum of exponentials, each of which Exp2()
  // computes to 2e-7, added up in any order.
  *error = 2 * logit_error + 4e-7 + (list.size() + 16) * kUnit;
  return w;
}

double Sum(const Row& a, const Row& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<int32_t> AllSlots(const oracle_fit* in) {
  std::vector<int32_t> all(in->n_tokens);
  for (uint32_t i = 0; i < in->n_tokens; ++i) all[i] = static_cast<int32_t>(i);
  return all;
}

Biases AllBiases(const oracle_fit* in) {
  if (in->biases == nullptr) return {};
  return {in->biases, in->biases + in->n_tokens};
}

Biases KeptBiases(const oracle_fit* in) {
  if (in->fitted_biases != nullptr) {
    return {in->fitted_biases, in->fitted_biases + in->n_keep};
  }
  Biases kept;
  for (uint32_t j = 0; j < in->n_keep && in->biases != nullptr; ++j) {
    kept.push_back(in->biases[in->keep[j]]);
  }
  return kept;
}

}  // namespace

void oracle_fit_bias_pulls(const oracle_fit* in, double* pulls,
                           double* bounds) {
  const size_t n = in->n_queries, t = in->n_keep;
  const std::vector<int32_t> all = AllSlots(in);
  const Biases before = AllBiases(in), after = KeptBiases(in);
  Row b(t), off(t);  // B, and what rounding a bias makes of it
  for (size_t j = 0; j < t; ++j) {
    const double old = before.empty() ? 0.0 : double{before[in->keep[j]]};
    b[j] = std::exp(after[j] - old);
    off[j] = b[j] * 2 * kUnit * std::fabs(after[j]);
    pulls[j] = bounds[j] = 0.0;
  }
  double trace = 0.0, most = 0.0;
  for (size_t i = 0; i < n; ++i) {
    double error = 0.0;
    const Row p = Weights(in, static_cast<uint32_t>(i), all, before, &error);
    double lacks = 0.0, size = 0.0, moved = 0.0;
    for (const double w : p) size += w;
    lacks -= size;  // T
    for (size_t j = 0; j < t; ++j) {
      const double w = p[in->keep[j]];
      lacks += w * b[j];
      size += w * b[j];
      moved += w * off[j];
      trace += w * w;
    }
    for (size_t j = 0; j < t; ++j) {
      const double w = p[in->keep[j]];
      pulls[j] += w * lacks;
      bounds[j] += w * (error * (std::fabs(lacks) + size) + moved);
    }
    most = std::max(most, error);
  }
  const double ridge = in->ridge * trace / t;
  for (size_t j = 0; j < t; ++j) {
    pulls[j] += ridge * (b[j] - 1.0);
    bounds[j] += ridge * (2 * most * std::fabs(b[j] - 1.0) + off[j]);
    bounds[j] = 1.1 * bounds[j] + 1e-12;
  }
}

double oracle_fit_values(const oracle_fit* in, double* fitted, double* bounds) {
  const size_t n = in->n_queries, t = in->n_keep, dim = in->value_dim;
  const std::vector<int32_t> all = AllSlots(in);
  const Biases before_biases = AllBiases(in), kept_biases = KeptBiases(in);
  const std::vector<int32_t> kept(in->keep, in->keep + t);
  const auto value = [&](int32_t slot, size_t e) {
    return double{in->values[size_t(slot) * dim + e]};
  };
  Rows x, residuals(n, Row(dim)), residual_errors(n, Row(dim));
  Row errors(n);  // of the weights in x
  for (uint32_t i = 0; i < n; ++i) {
    double error = 0.0;
    const Row p = Weights(in, i, all, before_biases, &error);
    x.push_back(Weights(in, i, kept, kept_biases, &errors[i]));
    for (size_t e = 0; e < dim; ++e) {
      double y = 0.0, size = 0.0;
      for (uint32_t j = 0; j < in->n_tokens; ++j) {
        y += p[j] * value(all[j], e);
        size += p[j] * std::fabs(value(all[j], e));
      }
      // Weighted values are added up in f32 too.
      double off = size * (error + (in->n_tokens + 4) * kUnit);
      double now = 0.0;
      size = 0.0;
      for (size_t j = 0; j < t; ++j) {
        now += x[i][j] * value(kept[j], e);
        size += x[i][j] * std::fabs(value(kept[j], e));
      }
      off += size * (errors[i] + (t + 4) * kUnit);
      residuals[i][e] = y - now;
      residual_errors[i][e] = off;
    }
  }
  Rows columns(t, Row(n));  // of x
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < t; ++j) columns[j][i] = x[i][j];
  }
  Rows gram(t, Row(t));
  double trace = 0.0;
  for (size_t j = 0; j < t; ++j) {
    for (size_t k = 0; k < t; ++k) gram[j][k] = Sum(columns[j], columns[k]);
    trace += gram[j][j];
  }
  for (size_t j = 0; j < t; ++j) gram[j][j] += in->ridge * trace / t;
  const Rows inverse = Inverse(gram);
  Rows response(t, Row(n, 0.0));  // inverse * X'
  for (size_t j = 0; j < t; ++j) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < t; ++k) response[j][i] += inverse[j][k] * x[i][k];
    }
  }
  double before = 0.0, after = 0.0;
  for (size_t e = 0; e < dim; ++e) {
    Row change(t, 0.0), left(n), moved(n);
    for (size_t j = 0; j < t; ++j) {
      for (size_t i = 0; i < n; ++i)
        change[j] += response[j][i] * residuals[i][e];
    }
    for (size_t i = 0; i < n; ++i) {
      left[i] = residuals[i][e] - Sum(x[i], change);
      before += residuals[i][e] * residuals[i][e];
      after += left[i] * left[i];
      moved[i] = residual_errors[i][e];
      for (size_t j = 0; j < t; ++j) {
        moved[i] += errors[i] * x[i][j] * std::fabs(change[j]);
      }
    }
    // From G d = X'(Y - X V), to first order in dX and d(Y - X V):
    // G dd = dX'(Y - X V - X d) + X'(d(Y - X V) - dX d) - d(lam) d. Second order is
    // a small part of that.
    Row pulls(t, 0.0);
    const double ridge_error = 2 *
                               *std::max_element(errors.begin(), errors.end()) *
                               in->ridge * trace / t;
    for (size_t k = 0; k < t; ++k) {
      for (size_t i = 0; i < n; ++i) {
        pulls[k] += errors[i] * x[i][k] * std::fabs(left[i]);
      }
      pulls[k] += ridge_error * std::fabs(change[k]);
    }
    for (size_t j = 0; j < t; ++j) {
      double bound = 0.0;
      for (size_t k = 0; k < t; ++k) {
        bound += std::fabs(inverse[j][k]) * pulls[k];
      }
      for (size_t i = 0; i < n; ++i) {
        bound += std::fabs(response[j][i]) * moved[i];
      }
      fitted[j * dim + e] = value(kept[j], e) + change[j];
      bounds[j * dim + e] = 1.1 * bound + 1e-12;
    }
  }
  return std::sqrt(after / before);
}
