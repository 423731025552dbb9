#include "tests/oracle/key_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/oracle/numbers.h"

namespace {

// The roundings of a sum over a row's elements, in 8 partial sums or more and a
// few steps that add those up.
double RowRoundings(uint32_t head_dim) { return head_dim / 8.0 + 16; }

double Norm(const std::vector<double>& v) {
  double sum = 0.0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

// Whether f32 has the key's square.
bool IsFinite(const float* key, uint32_t head_dim) {
  double square = 0.0;
  for (uint32_t i = 0; i < head_dim; ++i) square += double{key[i]} * key[i];
  return square <= double{std::numeric_limits<float>::max()};
}

// k / (|k| + 1e-8) of every key; 0 if it is not finite.
std::vector<double> Directions(const float* keys, uint32_t n_tokens,
                               uint32_t head_dim) {
  std::vector<double> all(size_t{n_tokens} * head_dim);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const float* key = keys + size_t{t} * head_dim;
    if (!IsFinite(key, head_dim)) continue;
    const double norm = Norm({key, key + head_dim}) + 1e-8;
    for (uint32_t i = 0; i < head_dim; ++i)
      all[size_t{t} * head_dim + i] = key[i] / norm;
  }
  return all;
}

double Cosine(const std::vector<double>& directions, uint32_t a, uint32_t b,
              uint32_t head_dim) {
  const double* of_a = &directions[size_t{a} * head_dim];
  return std::inner_product(of_a, of_a + head_dim,
                            &directions[size_t{b} * head_dim], 0.0);
}

// A product is a sum in the order of its elements. Each number in it is off by the
// roundings of a norm and four more.
double CosineRoundings(uint32_t head_dim) { return 2.0 * head_dim + 10; }

}  // namespace

// An element of the anchor is a sum of n terms, each off by the roundings of its
// norm and four more. Its pieces of at most 256 tokens are added one by one, and
// then the pieces. The anchor's direction is off by at most twice the anchor's
// error relative to its norm. The cosine is off by that, by its dot product's
// roundings and by those of two norms.
void oracle_key_diff(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                     double* scores, double* bounds) {
  std::vector<double> norms(n_tokens), anchor(head_dim), sizes(head_dim);
  uint32_t n_good = 0;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    n_good += IsFinite(keys + size_t{t} * head_dim, head_dim);
  }
  for (uint32_t t = 0; t < n_tokens; ++t) {
    const float* key = keys + size_t{t} * head_dim;
    if (!IsFinite(key, head_dim)) continue;
    norms[t] = Norm(std::vector<double>(key, key + head_dim));
    for (uint32_t i = 0; i < head_dim; ++i) {
      const double u = key[i] / std::max(norms[t], 1e-12);
      anchor[i] += u / n_good;
      sizes[i] += std::abs(u) / n_good;
    }
  }
  const double row = RowRoundings(head_dim);
  const double tokens = std::min(n_tokens, 256u) + n_tokens / 256.0 + 1;
  const double length = std::max(Norm(anchor), 1e-8);
  const double anchor_error = kUnit * (tokens + row + 4) * Norm(sizes);
  for (uint32_t t = 0; t < n_tokens; ++t) {
    double dot = 0.0;
    for (uint32_t i = 0; i < head_dim; ++i) {
      dot += keys[size_t{t} * head_dim + i] * anchor[i];
    }
    const bool is_good = IsFinite(keys + size_t{t} * head_dim, head_dim);
    scores[t] =
        is_good ? -dot / (std::max(norms[t], 1e-8) * length) : std::nan("");
    bounds[t] = 2 * anchor_error / length + kUnit * (3 * row + 8);
  }
}

namespace {

// A token that is held.
struct Present {
  uint32_t token;
  double score;  // NaN: has none
  double bound;
};

// Scores all tokens by the mean of all, in order.
std::vector<Present> Compare(const float* keys, uint32_t head_dim,
                             const std::vector<uint32_t>& tokens) {
  std::vector<float> rows;
  for (const uint32_t token : tokens) {
    const float* key = keys + size_t{token} * head_dim;
    rows.insert(rows.end(), key, key + head_dim);
  }
  std::vector<double> scores(tokens.size()), bounds(tokens.size());
  oracle_key_diff(rows.data(), static_cast<uint32_t>(tokens.size()), head_dim,
                  scores.data(), bounds.data());
  std::vector<Present> there;
  for (size_t i = 0; i < tokens.size(); ++i) {
    there.push_back({tokens[i], scores[i], bounds[i]});
  }
  return there;
}

// The least distance by which the worst of the first n_keep is above the best of
// the others. Equal rows have one score, and their order is exact.
double GapBetween(const float* keys, uint32_t head_dim,
                  const std::vector<Present>& ranked, uint32_t n_keep) {
  const auto row = [&](const Present& p) {
    return keys + size_t{p.token} * head_dim;
  };
  double gap = INFINITY;
  for (uint32_t i = 0; i < n_keep; ++i) {
    for (uint32_t j = n_keep; j < ranked.size(); ++j) {
      const Present& stays = ranked[i];
      const Present& leaves = ranked[j];
      const double apart =
          stays.score - stays.bound - (leaves.score + leaves.bound);
      if (!(apart < gap)) continue;  // also if NaN
      if (std::equal(row(stays), row(stays) + head_dim, row(leaves))) continue;
      gap = apart;
    }
  }
  return gap;
}

}  // namespace

double oracle_key_diff_blocks(const float* keys, uint32_t n_tokens,
                              uint32_t head_dim, uint32_t n_keep,
                              uint32_t block, int higher_wins, double* scores,
                              double* bounds) {
  std::vector<uint32_t> tokens;
  for (uint32_t t = 0; t < std::min(n_keep, n_tokens); ++t) tokens.push_back(t);
  if (n_keep >= n_tokens) {
    for (const Present& p : Compare(keys, head_dim, tokens)) {
      scores[p.token] = p.score;
      bounds[p.token] = p.bound;
    }
    return INFINITY;
  }
  double gap = INFINITY;
  for (uint32_t begin = n_keep; begin < n_tokens; begin += block) {
    const uint32_t end = std::min(n_tokens, begin + block);
    for (uint32_t t = begin; t < end; ++t) tokens.push_back(t);
    std::vector<Present> there = Compare(keys, head_dim, tokens);
    std::stable_sort(there.begin(), there.end(),
                     [&](const Present& a, const Present& b) {
                       if (std::isnan(a.score) || std::isnan(b.score)) {
                         if (std::isnan(a.score) != std::isnan(b.score)) {
                           return std::isnan(b.score);
                         }
                       } else if (a.score != b.score) {
                         return a.score > b.score;
                       }
                       return higher_wins != 0 && a.token > b.token;
                     });
    const double n_later = std::ceil((n_tokens - end) / double(block));
    tokens.clear();
    for (uint32_t i = 0; i < there.size(); ++i) {
      const Present& p = there[i];
      const bool stays = i < n_keep;
      scores[p.token] = stays || std::isnan(p.score) ? p.score : -2 - n_later;
      bounds[p.token] = stays ? p.bound : 0.0;
      if (stays) tokens.push_back(p.token);
    }
    gap = std::min(gap, GapBetween(keys, head_dim, there, n_keep));
    std::sort(tokens.begin(), tokens.end());
  }
  return gap;
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
    bounds[t] = kUnit * (RowRoundings(head_dim) + 1) * sizes;
  }
}

double oracle_similarity_gap(const float* keys, uint32_t n_tokens,
                             uint32_t head_dim, double threshold) {
  const std::vector<double> directions = Directions(keys, n_tokens, head_dim);
  double nearest = std::numeric_limits<double>::infinity();
  for (uint32_t i = 0; i < n_tokens; ++i) {
    for (uint32_t j = 0; j < i; ++j) {
      const double cosine = Cosine(directions, i, j, head_dim);
      nearest = std::min(nearest, std::abs(cosine - threshold));
    }
  }
  return nearest - kUnit * CosineRoundings(head_dim);
}

// A mean is off by the roundings of the sum of all directions, of a product with
// it, of the entry left out and a few more, each of numbers up to 1. An exponential
// is off by twice that, and all by their sum's error.
void oracle_redundancy(const float* keys, uint32_t n_tokens, uint32_t head_dim,
                       double threshold, double* scores, double* bounds) {
  const std::vector<double> directions = Directions(keys, n_tokens, head_dim);
  std::vector<double> means(n_tokens);
  uint32_t n_good = 0;
  for (uint32_t i = 0; i < n_tokens; ++i) {
    std::vector<double> row(n_tokens);
    uint32_t left_out = 0;
    for (uint32_t j = 0; j < n_tokens; ++j) {
      if (i == j) continue;
      row[j] = Cosine(directions, i, j, head_dim);
      if (row[j] > threshold) left_out = j;
    }
    row[left_out] = 0.0;
    for (uint32_t j = 0; j < n_tokens; ++j) means[j] += row[j];
    n_good += IsFinite(keys + size_t{i} * head_dim, head_dim);
  }
  double highest = -std::numeric_limits<double>::infinity();
  for (uint32_t j = 0; j < n_tokens; ++j) {
    means[j] /= n_good;
    if (!IsFinite(keys + size_t{j} * head_dim, head_dim)) {
      means[j] = std::numeric_limits<double>::quiet_NaN();
    } else {
      highest = std::max(highest, means[j]);
    }
  }
  double sum = 0.0;
  for (uint32_t j = 0; j < n_tokens; ++j) {
    scores[j] = std::exp(means[j] - highest);
    if (!std::isnan(scores[j])) sum += scores[j];
  }
  const double mean_error =
      kUnit * (2 * CosineRoundings(head_dim) + std::min(n_tokens, 256u) +
               n_tokens / 256.0 + 4);
  const double sum_error = kUnit * (n_tokens / 256.0 + 12);
  for (uint32_t j = 0; j < n_tokens; ++j) {
    scores[j] /= sum;
    bounds[j] = scores[j] * (4 * mean_error + sum_error + 8e-7);
  }
}
