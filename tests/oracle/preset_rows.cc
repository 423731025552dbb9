// Presets that score by the rows of the cache, or by position alone.
#include <algorithm>

#include "tests/oracle/key_scores.h"
#include "tests/oracle/key_value_scores.h"
#include "tests/oracle/numbers.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
namespace {

template <typename Make>
Heads BestBy(const oracle_prompt& p, const oracle_sizes& s, const Make& make) {
  return OfEach(p, [&](uint32_t h) {
    return Best(make(h), Truncated(p.n_tokens, s.budget));
  });
}

Heads Ends(const oracle_prompt& p, uint32_t n_first, uint32_t n_last) {
  if (n_first + n_last >= p.n_tokens) return AllOf(p);
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
  return OfEach(p, [&](uint32_t h) {
    Row row(p.n_tokens), bounds(p.n_tokens);
    oracle_key_diff(KeyOf(p, layer, h, 0), p.n_tokens, p.head_dim, row.data(),
                    bounds.data());
    // Cosines of f32 sums are near 0.
    return Best(row, Truncated(p.n_tokens, s.budget), 5e-7);
  });
}

namespace {

oracle_rows RowsOf(const oracle_prompt& p, uint32_t layer, uint32_t head,
                   uint32_t n_sink, uint32_t block) {
  return {p.n_tokens,
          n_sink,
          block,
          p.head_dim,
          p.head_dim,
          KeyOf(p, layer, head, 0),
          ValueOf(p, layer, head, 0)};
}

}  // namespace

// Shares of |k|^2 and |v|^2 in windows of 16, multiplied. The first 4 stay.
Heads Cur(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  return BestBy(p, s, [&](uint32_t h) {
    const oracle_rows in = RowsOf(p, layer, h, 0, 16);
    Row row(p.n_tokens), bounds(p.n_tokens);
    oracle_cur(&in, row.data(), bounds.data());
    std::fill_n(row.begin(), 4, kInfinity);
    return row;
  });
}

// Ranks within partitions after 4 sinks. The last partition and the rest rank 1.
Heads LagKvKvpress(const oracle_prompt& p, const oracle_sizes& s,
                   uint32_t layer) {
  return OfEach(p, [&](uint32_t h) {
    const oracle_rows in = RowsOf(p, layer, h, 4, s.block);
    Row row(p.n_tokens), bounds(p.n_tokens);
    oracle_lag(&in, 1, row.data(), bounds.data());
    // f32 may rank two that are near either way.
    const double most = *std::max_element(bounds.begin(), bounds.end());
    return Best(row, Truncated(p.n_tokens, s.budget),
                most > 1e-6 ? 1.5 / s.block : 1e-9);
  });
}

// int(ratio * lag) of each partition except the last, after 16 sinks.
Heads LagKvOriginal(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  constexpr uint32_t kSinks = 16;
  const uint32_t lag = s.block;
  if (p.n_tokens < kSinks + 2 * lag) return AllOf(p);
  return OfEach(p, [&](uint32_t h) {
    const oracle_rows in = RowsOf(p, layer, h, kSinks, lag);
    Row row(p.n_tokens), bounds(p.n_tokens);
    oracle_lag(&in, 0, row.data(), bounds.data());
    Kept kept = All(p.n_tokens);
    for (uint32_t i = 0; i + 1 < (p.n_tokens - kSinks) / lag; ++i) {
      const uint32_t begin = kSinks + i * lag;
      const uint32_t n = Truncated(lag, s.budget);
      const auto first = row.begin() + begin;
      const Kept of = Best(Row(first, first + lag), n, 1e-6 / lag);
      std::copy(of.must.begin(), of.must.end(), kept.must.begin() + begin);
      std::copy(of.may.begin(), of.may.end(), kept.may.begin() + begin);
      kept.least -= lag - n;
    }
    kept.most = kept.least;
    return kept;
  });
}

}  // namespace kvevict::oracle
