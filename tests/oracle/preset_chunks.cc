// Presets that work chunk by chunk.
#include <algorithm>
#include <cmath>

#include "tests/oracle/key_scores.h"
#include "tests/oracle/leverage.h"
#include "tests/oracle/non_causal.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {

// BlockPress of KeyDiffPress with its block of 128; a run may use a smaller one.
Heads KeyDiffBlocks(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  const uint32_t n = Truncated(p.n_tokens, s.budget);
  return OfEach(p, [&](uint32_t h) {
    Row row(p.n_tokens), bounds(p.n_tokens);
    const double apart =
        oracle_key_diff_blocks(KeyOf(p, layer, h, 0), p.n_tokens, p.head_dim, n,
                               s.block, 0, row.data(), bounds.data());
    Kept kept = Best(row, n, 0.0);
    // Once f32 chooses otherwise anywhere, everything after it may differ.
    if (apart <= 0.0) {
      std::fill(kept.must.begin(), kept.must.end(), 0);
      std::fill(kept.may.begin(), kept.may.end(), 1);
    }
    return kept;
  });
}

namespace {

// ChunkPress with its chunk_length of 1024; a run may use a smaller one. A press scores
// the keys of each slice alone, and max(1, int(length * (1 - r))) of it stay.
template <typename Score>
Heads OfChunks(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer,
               double doubt, const Score& score) {
  return OfEach(p, [&](uint32_t h) {
    Kept all;
    for (uint32_t i = 0; i < p.n_tokens; i += s.block) {
      const uint32_t length = std::min(s.block, p.n_tokens - i);
      const Kept kept = Best(score(KeyOf(p, layer, h, i), length),
                             std::max(1u, Truncated(length, s.budget)), doubt);
      all.must.insert(all.must.end(), kept.must.begin(), kept.must.end());
      all.may.insert(all.may.end(), kept.may.begin(), kept.may.end());
      all.least += kept.least;
      all.most += kept.most;
    }
    return all;
  });
}

}  // namespace

Heads KnormChunks(const oracle_prompt& p, const oracle_sizes& s,
                  uint32_t layer) {
  return OfChunks(p, s, layer, -1.0, [&](const float* keys, uint32_t n) {
    Row row(n);
    for (uint32_t j = 0; j < n; ++j) {
      row[j] = -NormOf(keys + size_t{j} * p.head_dim, p.head_dim);
    }
    return row;
  });
}

Heads KeyDiffChunks(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  return OfChunks(p, s, layer, 5e-7, [&](const float* keys, uint32_t n) {
    Row row(n), bounds(n);
    oracle_key_diff(keys, n, p.head_dim, row.data(), bounds.data());
    return row;
  });
}

namespace {

// Chunks of 256 of the tokens [first, end): the softmax of q.k without a scale over
// all keys of the chunk, summed over its queries, mean of the group, times |v|,
// avg_pool1d(3).
Row NonCausalRow(const oracle_prompt& p, uint32_t layer, uint32_t h,
                 uint32_t first, uint32_t end) {
  const uint32_t d = p.head_dim;
  const uint32_t n = end - first;
  const uint32_t group = p.n_q_heads / p.n_kv_heads;
  const size_t head = size_t{layer} * p.n_q_heads + size_t{h} * group;
  Row all(size_t{group} * n);
  oracle_non_causal_rows(group, p.n_tokens, n, d,
                         p.queries + (head * p.n_tokens + first) * d,
                         KeyOf(p, layer, h, first), nullptr, 256, all.data());
  Rows rows;
  for (uint32_t g = 0; g < group; ++g) {
    rows.emplace_back(all.begin() + g * n, all.begin() + (g + 1) * n);
  }
  Row row = MeanOfRows(rows);
  for (uint32_t j = 0; j < n; ++j) {
    row[j] *= NormOf(ValueOf(p, layer, h, first + j), d);
  }
  return AveragePool(row, n, 3);
}

Row LeverageRow(const oracle_prompt& p, uint32_t layer, uint32_t h,
                uint32_t first, uint32_t end) {
  std::vector<int32_t> positions;
  for (uint32_t t = first; t < end; ++t) {
    positions.push_back(static_cast<int32_t>(t));
  }
  const oracle_leverage in = {end - first,
                              p.head_dim,
                              KeyOf(p, layer, h, first),
                              positions.data(),
                              p.inv_freq,
                              p.head_dim / 2,
                              0};
  Row row(end - first);
  oracle_leverage_scores(&in, row.data());
  return row;
}

}  // namespace

Heads NonCausal(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  return OfEach(p, [&](uint32_t h) {
    const Row row = NonCausalRow(p, layer, h, 0, p.n_tokens);
    // Logits are some hundreds: their f32 sums are off by 1e-5, and so are the weights.
    const double largest = *std::max_element(row.begin(), row.end());
    return Best(row, Truncated(p.n_tokens, s.budget), 1e-4 * largest);
  });
}

// LeverageScorePress without its sketch.
Heads LeverageScore(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  return OfEach(p, [&](uint32_t h) {
    return Best(LeverageRow(p, layer, h, 0, p.n_tokens),
                Truncated(p.n_tokens, s.budget), 1e-5);
  });
}

// CompactorPress without its sketch: 8 and 4 tokens at the ends stay, and both scores
// of the others are standardised over the layer.
Heads Compactor(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  constexpr uint32_t kFirst = 8;
  const uint32_t end = p.n_tokens - 4;
  Row leverage, attention;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    const Row l = LeverageRow(p, layer, h, kFirst, end);
    const Row a = NonCausalRow(p, layer, h, kFirst, end);
    leverage.insert(leverage.end(), l.begin(), l.end());
    attention.insert(attention.end(), a.begin(), a.end());
  }
  oracle_normalise(leverage.data(), leverage.size());
  oracle_normalise(attention.data(), attention.size());
  return OfEach(p, [&](uint32_t h) {
    Row row(p.n_tokens, INFINITY);
    for (uint32_t t = kFirst; t < end; ++t) {
      const size_t i = size_t{h} * (end - kFirst) + t - kFirst;
      row[t] = (1.0 - s.budget) * leverage[i] + attention[i];
    }
    // As of the attention: a few deviations are the largest.
    return Best(row, Truncated(p.n_tokens, s.budget), 1e-3);
  });
}

}  // namespace kvevict::oracle
