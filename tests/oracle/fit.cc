#include "tests/oracle/fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/oracle/inverse.h"

namespace {

using kvevict::oracle::Inverse;
using kvevict::oracle::Row;
using kvevict::oracle::Rows;

constexpr double kUnit = 0x1p-24;  // of f32

// Natural logits of a query and the listed keys. *error: the most that f32 is off.
Row Logits(const oracle_fit* in, uint32_t query,
           const std::vector<int32_t>& list, double* error) {
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
    logits.push_back(x);
  }
  return logits;
}

// Weights of the listed keys. *error: their relative error in f32.
Row Weights(const oracle_fit* in, uint32_t query,
            const std::vector<int32_t>& list, double* error) {
  double logit_error = 0.0;
  Row w = Logits(in, query, list, &logit_error);
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

}  // namespace

double oracle_fit_values(const oracle_fit* in, double* fitted, double* bounds) {
  const size_t n = in->n_queries, t = in->n_keep, dim = in->value_dim;
  std::vector<int32_t> all(in->n_tokens);
  for (uint32_t i = 0; i < in->n_tokens; ++i) all[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> kept(in->keep, in->keep + t);
  const auto value = [&](int32_t slot, size_t e) {
    return double{in->values[size_t(slot) * dim + e]};
  };
  Rows x, residuals(n, Row(dim)), residual_errors(n, Row(dim));
  Row errors(n);  // of the weights in x
  for (uint32_t i = 0; i < n; ++i) {
    double error = 0.0;
    const Row p = Weights(in, i, all, &error);
    x.push_back(Weights(in, i, kept, &errors[i]));
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
