#include "tests/oracle/leverage.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/oracle/inverse.h"

namespace {

using kvevict::oracle::Inverse;
using kvevict::oracle::Row;

Row KeyBefore(const oracle_leverage* in, uint32_t token) {
  const float* key = in->keys + size_t{token} * in->head_dim;
  Row x(key, key + in->head_dim);
  for (uint32_t f = 0; in->positions != nullptr && f < in->n_pairs; ++f) {
    double& re = x[in->interleaved != 0 ? 2 * f : f];
    double& im = x[in->interleaved != 0 ? 2 * f + 1 : f + in->n_pairs];
    const double angle = double{in->inv_freq[f]} * in->positions[token];
    const double turned = re * std::cos(angle) + im * std::sin(angle);
    im = im * std::cos(angle) - re * std::sin(angle);
    re = turned;
  }
  return x;
}

}  // namespace

void oracle_leverage_scores(const oracle_leverage* in, double* leverage) {
  Row mean(in->head_dim, 0.0);
  std::vector<Row> keys;
  for (uint32_t t = 0; t < in->n_tokens; ++t) {
    keys.push_back(KeyBefore(in, t));
    for (uint32_t e = 0; e < in->head_dim; ++e) {
      mean[e] += keys[t][e] / in->n_tokens;
    }
  }
  for (Row& x : keys) {
    for (uint32_t e = 0; e < in->head_dim; ++e) x[e] -= mean[e];
  }
  const size_t n = in->head_dim;
  std::vector<Row> gram(n, Row(n, 0.0));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (const Row& x : keys) gram[i][j] += x[i] * x[j];
    }
    gram[i][i] += 0.01;
  }
  const std::vector<Row> inverse = Inverse(gram);
  for (uint32_t t = 0; t < in->n_tokens; ++t) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        sum += keys[t][i] * inverse[i][j] * keys[t][j];
      }
    }
    leverage[t] = std::max(0.0, sum);
  }
}
