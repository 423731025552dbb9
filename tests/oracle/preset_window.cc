// Presets that score by the attention of the last queries.
#include <algorithm>
#include <cmath>

#include "tests/oracle/draw.h"
#include "tests/oracle/key_scores.h"
#include "tests/oracle/numbers.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
// ---- SnapKV ----

Heads SnapKvKvpress(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  return BestOfEach(OfHeads(p, layer, s.window, KvpressSnap),
                    Truncated(p.n_tokens, s.budget));
}

// In the authors' code every query head has a cache of its own, for models without
// grouped queries.
Heads SnapKvKvf(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens < Tokens(s)) return AllOf(p);
  return BestOfEach(OfHeads(p, layer, s.window, KvfSnap), Tokens(s));
}

namespace {

Row SumOverModel(const oracle_prompt& p, uint32_t window) {
  Rows all;
  for (uint32_t l = 0; l < p.n_layers; ++l) {
    for (uint32_t q = 0; q < p.n_q_heads; ++q) {
      all.push_back(SumOfRows(Attention(p, l, q, window)));
    }
  }
  return SumOfRows(all);
}

}  // namespace

// Sums over layers, rows and heads. The last 64 stay; a run uses fewer, as many as
// rows.
Heads SharpInference(const oracle_prompt& p, const oracle_sizes& s, uint32_t) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  Row sum = SumOverModel(p, s.window);
  std::fill(sum.end() - s.window, sum.end(), kInfinity);
  return Heads(p.n_kv_heads, Best(sum, Tokens(s)));
}

// The same sums. 4 sinks stay, or an eighth of the budget, and an eighth of it of
// the last tokens. Prompts of up to 128 tokens stay whole.
Heads SnapKvD(const oracle_prompt& p, const oracle_sizes& s, uint32_t) {
  if (p.n_tokens <= 128 || p.n_tokens <= Tokens(s)) return AllOf(p);
  Row sum = SumOverModel(p, s.window);
  const uint32_t eighth = std::max(1u, Tokens(s) / 8);
  std::fill_n(sum.begin(), std::min(4u, eighth), kInfinity);
  std::fill(sum.end() - eighth, sum.end(), kInfinity);
  return Heads(p.n_kv_heads, Best(sum, Tokens(s)));
}

// 4 sinks; the mean of rows and group, an average of 7 over the past.
Heads WebLlm(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  return OfEach(p, [&](uint32_t h) {
    Row row = WithWindow(AveragePool(HeadAttention(p, layer, h, s.window),
                                     p.n_tokens - s.window, 7),
                         p.n_tokens);
    std::fill_n(row.begin(), 4, kInfinity);
    return Best(row, Tokens(s));
  });
}

// ---- VaSE-AttnV ----

// A quarter of the budget goes to the widest values, 4 first tokens among them. The
// rest is drawn by the window's attention to what is before it, which is averaged over
// 5 tokens: the largest quotients by numbers of Exp(1), the library's own.
Heads VaseAttnV(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  const uint32_t n_past = p.n_tokens - s.window;
  return OfEach(p, [&](uint32_t h) {
    const Row attention = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      Rows rows = Attention(p, layer, q, s.window);
      for (Row& row : rows) {
        row.resize(n_past);
        double sum = 0.0;
        for (const double v : row) sum += v;
        for (double& v : row) v /= sum;
      }
      return AveragePool(MeanOfRows(rows), n_past, 5);
    }));
    Row ranges(n_past, kInfinity);
    Row quotients(n_past);
    for (uint32_t j = 0; j < n_past; ++j) {
      const float* const v = ValueOf(p, layer, h, j);
      if (j >= 4) {
        ranges[j] = *std::max_element(v, v + p.head_dim) -
                    *std::min_element(v, v + p.head_dim);
      }
      quotients[j] =
          attention[j] / oracle_exponential(0, layer, h, p.n_tokens, j);
    }
    const uint32_t n = Tokens(s);
    return BestInTwoStages(WithWindow(ranges, p.n_tokens), s.window + n / 4,
                           WithWindow(quotients, p.n_tokens), {{}, {}, n, n});
  });
}

// ---- PyramidKV: see section 3.2 of the sources' formulas ----

namespace {

// c = cap - W; min = c // 20; max = 2c - min; if max >= S - W {max = S - W; min = 2c -
// max}; step = (max - min) // (L - 1); a layer keeps max - l * step and the window.
uint32_t IntegerSteps(const oracle_prompt& p, const oracle_sizes& s,
                      uint32_t layer) {
  const int past = static_cast<int>(p.n_tokens - s.window);
  const int c = static_cast<int>(Tokens(s) - s.window);
  int min = c / 20;
  int max = 2 * c - min;
  if (max >= past) {
    max = past;
    min = 2 * c - max;
  }
  const int n =
      p.n_layers == 1
          ? c
          : max - static_cast<int>(layer) *
                      ((max - min) / static_cast<int>(p.n_layers - 1));
  return static_cast<uint32_t>(n) + s.window;
}

}  // namespace

Heads PyramidKvKvf(const oracle_prompt& p, const oracle_sizes& s,
                   uint32_t layer) {
  if (p.n_tokens < Tokens(s)) return AllOf(p);
  const bool is_short = p.n_tokens < 2 * (Tokens(s) - s.window);
  return BestOfEach(OfHeads(p, layer, s.window, KvfSnap),
                    is_short ? Tokens(s) : IntegerSteps(p, s, layer));
}

Heads PyramidKvAdaKv(const oracle_prompt& p, const oracle_sizes& s,
                     uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  return BestOfEach(OfHeads(p, layer, s.window, AdaSnap),
                    IntegerSteps(p, s, layer));
}

// Floating point, with the window on top. If that does not fit, all layers are alike.
Heads PyramidKvKvpress(const oracle_prompt& p, const oracle_sizes& s,
                       uint32_t layer) {
  const double n_kept = p.n_tokens * s.budget;
  double min = n_kept / 20.0;
  double max = 2.0 * n_kept - min;
  if (max >= p.n_tokens - s.window) {
    max = p.n_tokens - s.window;
    min = 2.0 * n_kept - max;
  }
  double n = n_kept;
  if (p.n_layers > 1 && p.n_tokens >= max && max >= min && min >= s.window) {
    n = max - layer * (max - min) / (p.n_layers - 1);
  }
  return BestOfEach(OfHeads(p, layer, s.window, KvpressSnap),
                    static_cast<uint32_t>(std::nearbyint(n)));
}

// ---- ChunkKV: chunks of 20 by the mean of the heads' sums ----

Heads ChunkKv(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  constexpr uint32_t kChunk = 20;
  const Rows rows = OfHeads(p, layer, s.window, KvpressSnap);
  double greatest = 0.0;  // the window has this, plus 1
  for (const Row& row : rows) {
    for (const double v : row) {
      if (std::isfinite(v)) greatest = std::max(greatest, v);
    }
  }
  Row chunks;
  for (uint32_t begin = 0; begin < p.n_tokens; begin += kChunk) {
    const uint32_t end = std::min(p.n_tokens, begin + kChunk);
    double sum = 0.0;
    for (const Row& row : rows) {
      for (uint32_t i = begin; i < end; ++i) {
        sum += std::isfinite(row[i]) ? row[i] : greatest + 1.0;
      }
    }
    chunks.push_back(sum / (end - begin));
  }
  const auto n_chunks = static_cast<uint32_t>(chunks.size());
  const uint32_t n = std::max(1u, Truncated(n_chunks, s.budget));
  const Kept of_chunks = Best(chunks, n);
  Kept kept = {{}, {}, n * kChunk, n * kChunk};
  for (uint32_t i = 0; i < p.n_tokens; ++i) {
    kept.must.push_back(of_chunks.must[i / kChunk]);
    kept.may.push_back(of_chunks.may[i / kChunk]);
  }
  // The last chunk is the window's and stays.
  const uint32_t missing = n_chunks * kChunk - p.n_tokens;
  kept.least = kept.most = n * kChunk - missing;
  return Heads(p.n_kv_heads, kept);
}

// ---- TOVA, FINCH, R-KV ----

namespace {

Row LastQuery(const oracle_prompt& p, uint32_t layer) {
  Rows rows;
  for (uint32_t q = 0; q < p.n_q_heads; ++q) {
    rows.push_back(Attention(p, layer, q, 1)[0]);
  }
  return MeanOfRows(rows);
}

}  // namespace

Heads TovaKvpress(const oracle_prompt& p, const oracle_sizes& s,
                  uint32_t layer) {
  Row row = LastQuery(p, layer);
  row.back() = kInfinity;
  return Heads(p.n_kv_heads, Best(row, Truncated(p.n_tokens, s.budget)));
}

// The newest token is ranked like any other.
Heads TovaOriginal(const oracle_prompt& p, const oracle_sizes& s,
                   uint32_t layer) {
  if (p.n_tokens <= Tokens(s)) return AllOf(p);
  return Heads(p.n_kv_heads, Best(LastQuery(p, layer), Tokens(s)));
}

// Row w times the S - W + w keys before its own.
Heads Finch(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  return OfEach(p, [&](uint32_t h) {
    Row row = MeanOfRows(OfGroup(p, h, [&](uint32_t q) {
      Rows rows = Attention(p, layer, q, s.window);
      for (uint32_t w = 0; w < s.window; ++w) {
        for (double& v : rows[w]) v *= p.n_tokens - s.window + w;
      }
      return MeanOfRows(rows);
    }));
    row.resize(p.n_tokens - s.window);
    return Best(WithWindow(row, p.n_tokens), Truncated(p.n_tokens, s.budget));
  });
}

// 0.07 I - 0.93 R, where I is the largest logit of the group, over the past alone.
Heads RKv(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  constexpr uint32_t kWindow = 8;
  if (p.n_tokens < Tokens(s)) return AllOf(p);
  const uint32_t n_past = p.n_tokens - kWindow;
  const uint32_t group = p.n_q_heads / p.n_kv_heads;
  return OfEach(p, [&](uint32_t h) {
    Rows rows(kWindow, Row(n_past));
    for (uint32_t w = 0; w < kWindow; ++w) {
      double sum = 0.0;
      for (uint32_t j = 0; j < n_past; ++j) {
        double largest = -kInfinity;
        for (uint32_t q = h * group; q < (h + 1) * group; ++q) {
          const float* const query =
              p.queries +
              (size_t{layer * p.n_q_heads + q} * p.n_tokens + n_past + w) *
                  p.head_dim;
          double dot = 0.0;
          for (uint32_t d = 0; d < p.head_dim; ++d) {
            dot += double{query[d]} * KeyOf(p, layer, h, j)[d];
          }
          largest = std::max(largest, dot);
        }
        rows[w][j] = std::exp(largest / std::sqrt(double{1} * p.head_dim));
        sum += rows[w][j];
      }
      for (double& v : rows[w]) v /= sum;
    }
    const Row importance = MaxPool(MeanOfRows(rows), n_past, 7);
    Row redundancy(p.n_tokens), bounds(p.n_tokens);
    oracle_redundancy(KeyOf(p, layer, h, 0), p.n_tokens, p.head_dim, 0.5,
                      redundancy.data(), bounds.data());
    Row row(n_past);
    for (uint32_t j = 0; j < n_past; ++j) {
      row[j] = 0.07 * importance[j] - (1.0 - 0.07) * redundancy[j];
    }
    return Best(WithWindow(row, p.n_tokens), Tokens(s));
  });
}

// Its buffer is `block` tokens: with fewer there is no eviction.
Heads RKvDecode(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  if (p.n_tokens < Tokens(s) + s.block) return AllOf(p);
  return RKv(p, s, layer);
}

}  // namespace kvevict::oracle
