// Presets that work chunk by chunk.
#include <algorithm>
#include <cmath>

#include "tests/oracle/key_scores.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {

// BlockPress of KeyDiffPress with its block of 128; a run may use a smaller one.
Heads KeyDiffBlocks(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  const uint32_t n = Truncated(p.n_tokens, s.budget);
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
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
    heads.push_back(kept);
  }
  return heads;
}

namespace {

// ChunkPress with its chunk_length of 1024; a run may use a smaller one. A press scores
// the keys of each slice alone, and max(1, int(length * (1 - r))) of it stay.
template <typename Score>
Heads OfChunks(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer,
               double doubt, const Score& score) {
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
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
    heads.push_back(all);
  }
  return heads;
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

// Chunks of 256: the softmax of q.k without a scale over all keys of the chunk,
// summed over its queries, mean of the group, times |v|, avg_pool1d(3).
Heads NonCausal(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  constexpr uint32_t kChunk = 256;
  const uint32_t d = p.head_dim;
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      Row sums(p.n_tokens, 0.0);
      for (uint32_t i = 0; i < p.n_tokens; ++i) {
        const float* const query =
            p.queries +
            ((size_t{layer} * p.n_q_heads + q) * p.n_tokens + i) * d;
        const uint32_t begin = i / kChunk * kChunk;
        const uint32_t end = std::min(p.n_tokens, begin + kChunk);
        Row weights(end - begin);
        double greatest = -1e300, sum = 0.0;
        for (uint32_t j = begin; j < end; ++j) {
          const float* const key = KeyOf(p, layer, h, j);
          double dot = 0.0;
          for (uint32_t e = 0; e < d; ++e) dot += double{query[e]} * key[e];
          weights[j - begin] = dot;
          greatest = std::max(greatest, dot);
        }
        for (double& w : weights) sum += w = std::exp(w - greatest);
        for (uint32_t j = begin; j < end; ++j) {
          sums[j] += weights[j - begin] / sum;
        }
      }
      return sums;
    }));
    for (uint32_t j = 0; j < p.n_tokens; ++j) {
      row[j] *= NormOf(ValueOf(p, layer, h, j), d);
    }
    row = AveragePool(row, p.n_tokens, 3);
    // Logits are some hundreds: their f32 sums are off by 1e-5, and so are the weights.
    const double largest = *std::max_element(row.begin(), row.end());
    heads.push_back(Best(row, Truncated(p.n_tokens, s.budget), 1e-4 * largest));
  }
  return heads;
}

}  // namespace kvevict::oracle
