// Presets whose heads share a budget, or that choose in two stages.
#include <algorithm>
#include <cmath>

#include "tests/oracle/numbers.h"
#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
// ---- AdaKV, CriticalKV ----

namespace {

// The n_safe best of each row certainly stay.
Rows Safe(Rows rows, uint32_t n_safe) {
  for (Row& row : rows) {
    Row sorted = row;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double cut = n_safe == 0 ? kInfinity : sorted[n_safe - 1];
    for (double& v : row) {
      if (v >= cut) v = kInfinity;
    }
  }
  return rows;
}

// The authors' blend of past scores: f of an equal share and the tokens won by the
// highest H * base, rounded half to even in f32.
Heads Blend(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer,
            bool normalize) {
  constexpr double kFloor = 0.2;
  const uint32_t n_past = p.n_tokens - s.window;
  const uint32_t base = Tokens(s) - s.window;
  if (base >= n_past) return AllOf(p);  // at base == n_past: see docs/policies
  const Rows rows = OfHeads(p, layer, s.window, AdaSnap);
  Rows past;
  for (Row row : rows) {
    row.resize(n_past);
    if (normalize) {
      Row sorted = row;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      double best = 0.0, all = 0.0;
      for (uint32_t i = 0; i < n_past; ++i) {
        all += sorted[i];
        if (i < base) best += sorted[i];
      }
      for (double& v : row) v *= best / all;
    }
    past.push_back(row);
  }
  const std::vector<Share> won = Contest(past, p.n_kv_heads * base);
  const auto kept = [&](uint32_t n) {
    const float sum = static_cast<float>(n) * static_cast<float>(1.0 - kFloor) +
                      static_cast<float>(static_cast<uint32_t>(base * kFloor));
    return static_cast<uint32_t>(std::nearbyint(sum)) + s.window;
  };
  return OfEach(p, [&](uint32_t h) {
    return Best(rows[h], kept(won[h].least), kept(won[h].most), -1.0);
  });
}

}  // namespace

Heads AdaKvOriginal(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  return Blend(p, s, layer, false);
}

Heads AdaKvKvf(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer) {
  return Blend(p, s, layer, true);
}

Heads AdaKvKvpress(const oracle_prompt& p, const oracle_sizes& s,
                   uint32_t layer) {
  const uint32_t n = Truncated(p.n_tokens, s.budget);
  const Rows rows = OfHeads(p, layer, s.window, KvpressSnap);
  const std::vector<Share> won =
      Contest(Safe(rows, Truncated(n, 0.2)), p.n_kv_heads * n);
  return OfEach(p, [&](uint32_t h) {
    return Best(rows[h], won[h].least, won[h].most, -1.0);
  });
}

namespace {

// (score + 1e-4) * ||V Wo||_1; the window stays.
Row Weighed(const oracle_prompt& p, uint32_t layer, uint32_t head, Row row) {
  const float* const weights =
      p.weights + size_t{layer * p.n_kv_heads + head} * p.n_tokens;
  for (uint32_t i = 0; i < p.n_tokens; ++i) {
    row[i] = (row[i] + 1e-4) * weights[i];
  }
  return row;
}

}  // namespace

// Half of the budget goes by the scores alone, the rest by weighed ones.
Heads CriticalKv(const oracle_prompt& p, const oracle_sizes& s,
                 uint32_t layer) {
  const uint32_t n = Truncated(p.n_tokens, s.budget);
  const auto first = static_cast<uint32_t>(s.budget * p.n_tokens * 0.5);
  const Rows rows = OfHeads(p, layer, s.window, KvpressSnap);
  return OfEach(p, [&](uint32_t h) {
    const Row then = Weighed(p, layer, h, rows[h]);
    Kept number;
    number.least = number.most = n;
    return BestInTwoStages(rows[h], first, then, number);
  });
}

// AdaKV's contest says how many stay; half of these go by the scores alone.
Heads CriticalAdaKv(const oracle_prompt& p, const oracle_sizes& s,
                    uint32_t layer) {
  const uint32_t n = Truncated(p.n_tokens, s.budget);
  const uint32_t n_safe = Truncated(n, 0.2);
  const Rows rows = OfHeads(p, layer, s.window, KvpressSnap);
  const std::vector<Share> won = Contest(Safe(rows, n_safe), p.n_kv_heads * n);
  Heads heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    Kept number;
    number.least = won[h].least;
    number.most = won[h].most;
    const uint32_t first = std::max(n_safe, number.least / 2);
    const Row then = Weighed(p, layer, h, rows[h]);
    heads.push_back(BestInTwoStages(rows[h], first, then, number));
    if (number.least == number.most) continue;
    heads.back().must = Best(rows[h], first).must;
    heads.back().may.assign(p.n_tokens, 1);
  }
  return heads;
}

}  // namespace kvevict::oracle
