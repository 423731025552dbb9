// Presets that score by the rows of the cache, or by position alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/oracle/key_scores.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Make>
Heads BestBy(const oracle_prompt& p, const oracle_sizes& s, const Make& make) {
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    heads.push_back(Best(make(h), Truncated(p.n_tokens, s.budget)));
  }
  return heads;
}

Heads Ends(const oracle_prompt& p, uint32_t n_first, uint32_t n_last) {
  if (n_first + n_last >= p.n_tokens) {
    return Heads(p.n_kv_heads, All(p.n_tokens));
  }
  Row row(p.n_tokens, 0.0);
  std::fill_n(row.begin(), n_first, kInfinity);
  std::fill(row.end() - n_last, row.end(), kInfinity);
  return Heads(p.n_kv_heads, Best(row, n_first + n_last));
}

}  // namespace

// start_size 4 and recent_size; a run uses less than 512.
Heads StreamingLlmOriginal(const oracle_prompt& p, const oracle_sizes& s,
                           uint32_t) {
  return Ends(p, 4, s.window);
}

// 4 sinks are inside the budget.
Heads StreamingLlmKvpress(const oracle_prompt& p, const oracle_sizes& s,
                          uint32_t) {
  return Ends(p, 4, Truncated(p.n_tokens, s.budget) - 4);
}

Heads Knorm(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  return BestBy(p, s, [&](uint32_t h) {
    Row row(p.n_tokens);
    for (uint32_t j = 0; j < p.n_tokens; ++j) {
      row[j] = -NormOf(KeyOf(p, layer, h, j), p.head_dim);
    }
    return row;
  });
}

Heads KeyDiff(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Row row(p.n_tokens), bounds(p.n_tokens);
    oracle_key_diff(KeyOf(p, layer, h, 0), p.n_tokens, p.head_dim, row.data(),
                    bounds.data());
    // Cosines of f32 sums are near 0.
    heads.push_back(Best(row, Truncated(p.n_tokens, s.budget), 5e-7));
  }
  return heads;
}

// Shares of |k|^2 and |v|^2 in windows of 16, multiplied. The first 4 stay.
Heads Cur(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  constexpr uint32_t kWindow = 16;
  return BestBy(p, s, [&](uint32_t h) {
    const auto shares = [&](auto row_of) {
      Row squares(p.n_tokens);
      for (uint32_t j = 0; j < p.n_tokens; ++j) {
        const double norm = NormOf(row_of(p, layer, h, j), p.head_dim);
        squares[j] = norm * norm;
      }
      for (uint32_t begin = 0; begin < p.n_tokens; begin += kWindow) {
        const uint32_t end = std::min(p.n_tokens, begin + kWindow);
        const double sum = std::accumulate(squares.begin() + begin,
                                           squares.begin() + end, 0.0);
        for (uint32_t j = begin; j < end; ++j) squares[j] /= sum;
      }
      return squares;
    };
    Row row = shares(KeyOf);
    const Row of_values = shares(ValueOf);
    for (uint32_t j = 0; j < p.n_tokens; ++j) row[j] *= of_values[j];
    std::fill_n(row.begin(), 4, kInfinity);
    return row;
  });
}

namespace {

// LagKV scores a partition's rows against the next one's: per channel on the next
// one's scale, the deviation over the channels, softmax over the tokens.
template <typename RowOf>
Row LagOf(const oracle_prompt& p, uint32_t layer, uint32_t head, uint32_t begin,
          uint32_t lag, RowOf row_of) {
  Row low(p.head_dim, kInfinity), high(p.head_dim, -kInfinity);
  for (uint32_t j = begin + lag; j < begin + 2 * lag; ++j) {
    for (uint32_t d = 0; d < p.head_dim; ++d) {
      low[d] = std::min(low[d], double{row_of(p, layer, head, j)[d]});
      high[d] = std::max(high[d], double{row_of(p, layer, head, j)[d]});
    }
  }
  Row out(lag);
  double sum = 0.0;
  for (uint32_t i = 0; i < lag; ++i) {
    Row scaled(p.head_dim);
    double mean = 0.0, square = 0.0;
    for (uint32_t d = 0; d < p.head_dim; ++d) {
      scaled[d] =
          (row_of(p, layer, head, begin + i)[d] - low[d]) / (high[d] - low[d]);
      mean += scaled[d] / p.head_dim;
    }
    for (const double v : scaled) square += (v - mean) * (v - mean);
    sum += out[i] = std::exp(std::sqrt(square / (p.head_dim - 1)));
  }
  for (double& v : out) v /= sum;
  return out;
}

// Keys and values count alike.
Row LagScores(const oracle_prompt& p, uint32_t layer, uint32_t head,
              uint32_t begin, uint32_t lag) {
  return MeanOfRows({LagOf(p, layer, head, begin, lag, KeyOf),
                     LagOf(p, layer, head, begin, lag, ValueOf)});
}

}  // namespace

// Ranks within partitions after 4 sinks. The last partition and the rest rank 1.
Heads LagKvKvpress(const oracle_prompt& p, const oracle_sizes& s,
                   uint32_t layer) {
  constexpr uint32_t kSinks = 4;
  const uint32_t lag = s.block;
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Row row(p.n_tokens, 1.0);
    double doubt = 0.0;
    const uint32_t n = p.n_tokens - kSinks;
    if (p.n_tokens < kSinks + 2 * lag) {
      for (uint32_t j = 0; j < n; ++j) row[kSinks + j] = double{1} * j / n;
    }
    for (uint32_t i = 0; n >= 2 * lag && i + 1 < n / lag; ++i) {
      const uint32_t begin = kSinks + i * lag;
      const Row scores = LagScores(p, layer, h, begin, lag);
      for (uint32_t a = 0; a < lag; ++a) {
        uint32_t rank = 0;
        for (uint32_t b = 0; b < lag; ++b) {
          rank += scores[b] < scores[a];
          // f32 may rank these two either way.
          if (b != a && std::abs(scores[b] - scores[a]) < 1e-6 * scores[a]) {
            doubt = 1.5 / lag;
          }
        }
        row[begin + a] = double{1} * rank / lag;
      }
    }
    heads.push_back(
        Best(row, Truncated(p.n_tokens, s.budget), std::max(doubt, 1e-9)));
  }
  return heads;
}

// int(ratio * lag) of each partition except the last, after 16 sinks.
Heads LagKvOriginal(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  constexpr uint32_t kSinks = 16;
  const uint32_t lag = s.block;
  if (p.n_tokens < kSinks + 2 * lag)
    return Heads(p.n_kv_heads, All(p.n_tokens));
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Kept kept = All(p.n_tokens);
    for (uint32_t i = 0; i + 1 < (p.n_tokens - kSinks) / lag; ++i) {
      const uint32_t begin = kSinks + i * lag;
      const uint32_t n = Truncated(lag, s.budget);
      const Kept of = Best(LagScores(p, layer, h, begin, lag), n, 1e-6 / lag);
      std::copy(of.must.begin(), of.must.end(), kept.must.begin() + begin);
      std::copy(of.may.begin(), of.may.end(), kept.may.begin() + begin);
      kept.least -= lag - n;
    }
    kept.most = kept.least;
    heads.push_back(kept);
  }
  return heads;
}

}  // namespace kvevict::oracle
