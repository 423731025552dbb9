#include "tests/oracle/key_scores.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

constexpr double kHalfUlp = 0x1p-24;

// Roundings of a sum over a row's elements, in 8 partial sums or more and a few
// steps that add those up.
double RowRoundings(uint32_t head_dim) { return head_dim / 8.0 + 16; }

double Norm(const std::vector<double>& v) {
  double sum = 0.0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

// An element of the anchor is a sum of n terms, each off by the roundings of its norm
// and four more; its pieces of at most 256 tokens are added one by one, and then
// the pieces. The anchor's direction is off by at most twice what the anchor is off,
// as a part of its norm; the cosine by that, by its dot product's roundings and by
// those of two norms.
void oracle_key_diff(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                     double* scores, double* bounds) {
  std::vector<double> norms(n_tokens), anchor(head_dim), sizes(head_dim);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const float* key = keys + size_t{t} * head_dim;
    norms[t] = Norm(std::vector<double>(key, key + head_dim));
    for (uint32_t i = 0; i < head_dim; ++i) {
      const double u = key[i] / std::max(norms[t], 1e-12);
      anchor[i] += u / n_tokens;
      sizes[i] += std::abs(u) / n_tokens;
    }
  }
  const double row = RowRoundings(head_dim);
  const double tokens = std::min(n_tokens, 256u) + n_tokens / 256.0 + 1;
  const double length = std::max(Norm(anchor), 1e-8);
  const double anchor_error = kHalfUlp * (tokens + row + 4) * Norm(sizes);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    double dot = 0.0;
    for (uint32_t i = 0; i < head_dim; ++i) {
      dot += keys[size_t{t} * head_dim + i] * anchor[i];
    }
    scores[t] = -dot / (std::max(norms[t], 1e-8) * length);
    bounds[t] = 2 * anchor_error / length + kHalfUlp * (3 * row + 8);
  }
}

void oracle_key_filter(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                       const float* filter, double* scores, double* bounds) {
  for (uint32_t t = 0; t < n_tokens; ++t) {
    double dot = 0.0, sizes = 0.0;
    for (uint32_t i = 0; i < head_dim; ++i) {
      const double term =
          static_cast<double>(keys[size_t{t} * head_dim + i]) * filter[i];
      dot += term;
      sizes += std::abs(term);
    }
    scores[t] = -dot;
    bounds[t] = kHalfUlp * (RowRoundings(head_dim) + 1) * sizes;
  }
}
