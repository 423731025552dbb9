// DefensiveKV and Layer-DefensiveKV, step by step as their authors' code computes them;
// but the window stays, and the first stage secures no less than nothing.
#include <algorithm>

#include "tests/oracle/preset_rules.h"

namespace kvevict::oracle {
namespace {

constexpr uint32_t kKernel = 5;

double SumOf(const Row& row) {
  double sum = 0.0;
  for (const double v : row) sum += v;
  return sum;
}

// What a KV head has of the past.
struct Past {
  Row ave;     // mean over rows and group, not pooled
  Row scores;  // defensive, then weighed
};

// Every row of every query head is pooled and gets its mass back; the largest of all,
// and at least the mean over the past.
Past Defend(const oracle_prompt& p, uint32_t layer, uint32_t head,
            uint32_t window) {
  const uint32_t n = p.n_tokens - window;
  const uint32_t group = p.n_q_heads / p.n_kv_heads;
  Past past = {Row(n, 0.0), Row(n, 0.0)};
  for (uint32_t q = head * group; q < (head + 1) * group; ++q) {
    for (Row row : Attention(p, layer, q, window)) {
      row.resize(n);
      const Row pooled = AveragePool(row, n, kKernel);
      const double factor = SumOf(row) / SumOf(pooled);
      for (uint32_t j = 0; j < n; ++j) {
        past.ave[j] += row[j] / (group * window);
        past.scores[j] = std::max(past.scores[j], pooled[j] * factor);
      }
    }
  }
  const double mean = SumOf(past.scores) / n;
  for (double& v : past.scores) v = std::max(v, mean);
  return past;
}

// How many of the best by `ave` come before the one with which their share of all
// reaches 0.9 - bias.
uint32_t CountSecured(const Row& ave, double bias) {
  Row sorted = ave;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double all = SumOf(ave);
  double sum = 0.0;
  uint32_t n = 0;
  for (; n < sorted.size(); ++n) {
    sum += sorted[n] / all;
    if (sum >= 0.9 - bias) break;
  }
  return n;
}

void Secure(const oracle_prompt& p, const oracle_sizes& s,
            std::vector<Past>* heads) {
  const uint32_t n = p.n_tokens - s.window;
  double bias = 0.0;
  double highest = 0.0;
  for (const Past& past : *heads) {
    for (uint32_t j = n > s.window ? n - s.window : 0; j < n; ++j) {
      bias += past.ave[j] / p.n_kv_heads;
    }
    highest = std::max(
        highest, *std::max_element(past.scores.begin(), past.scores.end()));
  }
  const double room = n * s.budget - s.window;
  for (Past& past : *heads) {
    uint32_t count = CountSecured(past.ave, bias);
    count = std::min(count, static_cast<uint32_t>(std::max(0.0, room)));
    Row sorted = past.ave;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (uint32_t j = 0; j < n && count > 0; ++j) {
      if (past.ave[j] >= sorted[count - 1]) past.scores[j] = highest;
    }
  }
}

// The scores of a layer's heads, infinity for the window.
Rows Scores(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer,
            bool has_first_stage) {
  std::vector<Past> heads;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    heads.push_back(Defend(p, layer, h, s.window));
  }
  for (uint32_t j = 0; j < p.n_tokens - s.window; ++j) {
    const auto norm = [&](uint32_t h) {
      return p.weights[size_t{layer * p.n_kv_heads + h} * p.n_tokens + j];
    };
    double sum = 0.0;
    for (uint32_t h = 0; h < p.n_kv_heads; ++h) sum += norm(h);
    for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
      heads[h].scores[j] *= norm(h) / sum;
    }
  }
  if (has_first_stage) Secure(p, s, &heads);
  Rows rows;
  for (const Past& past : heads) {
    rows.push_back(WithWindow(past.scores, p.n_tokens));
  }
  return rows;
}

// The best int(S * budget * heads) of all rows.
Heads BestOfAll(const oracle_prompt& p, const oracle_sizes& s,
                const Rows& rows) {
  const auto n = static_cast<uint32_t>(p.n_tokens * s.budget *
                                       static_cast<double>(rows.size()));
  const std::vector<Share> won = Contest(rows, n);
  Heads heads;
  for (size_t i = 0; i < rows.size(); ++i) {
    heads.push_back(Best(rows[i], won[i].least, won[i].most, -1.0));
  }
  return heads;
}

Heads OfLayers(const oracle_prompt& p, const oracle_sizes& s, uint32_t layer,
               bool has_first_stage) {
  Rows all;
  for (uint32_t l = 0; l < p.n_layers; ++l) {
    for (const Row& row : Scores(p, s, l, has_first_stage)) all.push_back(row);
  }
  const Heads heads = BestOfAll(p, s, all);
  const auto first = heads.begin() + size_t{layer} * p.n_kv_heads;
  return Heads(first, first + p.n_kv_heads);
}

}  // namespace

Heads DefensiveKvOriginal(const oracle_prompt& p, const oracle_sizes& s,
                          uint32_t layer) {
  return BestOfAll(p, s, Scores(p, s, layer, true));
}

Heads LayerDefensiveKvOriginal(const oracle_prompt& p, const oracle_sizes& s,
                               uint32_t layer) {
  return OfLayers(p, s, layer, true);
}

Heads DefensiveKv(const oracle_prompt& p, const oracle_sizes& s,
                  uint32_t layer) {
  return BestOfAll(p, s, Scores(p, s, layer, false));
}

Heads LayerDefensiveKv(const oracle_prompt& p, const oracle_sizes& s,
                       uint32_t layer) {
  return OfLayers(p, s, layer, false);
}

}  // namespace kvevict::oracle
