#include "tests/oracle/head_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace {

// What must stay ranks as infinity above the others, and a NaN below them.
double Rank(const oracle_head& head, uint32_t i) {
  if (head.forced[i]) return std::numeric_limits<double>::infinity();
  if (std::isnan(head.scores[i])) return -1e300;
  // Infinite scores are finite here, so that forced slots rank above them.
  return std::clamp(double{head.scores[i]}, -1e200, 1e200);
}

std::vector<double> Ranking(const oracle_head& head) {
  std::vector<double> ranks(head.n_tokens);
  for (uint32_t i = 0; i < head.n_tokens; ++i) ranks[i] = Rank(head, i);
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  return ranks;
}

// A token in the contest. Larger ones stay.
struct Entry {
  bool safe;
  double rank;
  int64_t turn;  // minus the number of equal ones of its head before it
  int64_t head;  // minus its head's number

  auto Key() const { return std::tie(safe, rank, turn, head); }
};

// In f32, half to even.
uint32_t Blend(uint32_t n_won, uint32_t n_own, double floor) {
  const volatile float part = static_cast<float>(1.0 - floor);
  const volatile float won = static_cast<float>(n_won) * part;
  const volatile float sum = won + static_cast<float>(n_own);
  const auto whole = static_cast<uint32_t>(sum);
  const float rest = sum - static_cast<float>(whole);
  if (rest == 0.5f) return whole + whole % 2;
  return whole + (rest > 0.5f);
}

}  // namespace

void oracle_count_winners(const oracle_head* heads, uint32_t n_heads,
                          uint64_t n_winners, uint32_t n_safe,
                          uint32_t* counts) {
  std::vector<Entry> entries;
  for (uint32_t h = 0; h < n_heads; ++h) {
    const std::vector<double> ranks = Ranking(heads[h]);
    int64_t turn = 0;
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      const bool safe = i < n_safe;
      const bool follows = !safe && i > n_safe && ranks[i] == ranks[i - 1];
      turn = follows ? turn - 1 : 0;
      entries.push_back({safe, ranks[i], turn, -int64_t{h}});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.Key() > b.Key(); });
  const size_t n = std::min(entries.size(), static_cast<size_t>(n_winners));
  std::fill_n(counts, n_heads, 0);
  for (size_t i = 0; i < n; ++i) ++counts[-entries[i].head];
}

void oracle_head_counts(const oracle_policy* policy, const oracle_head* heads,
                        uint32_t n_heads, uint32_t budget, uint32_t n_asked,
                        uint32_t* counts) {
  const double floor = policy->floor;
  if (policy->heads == ORACLE_HEADS_ADAPTIVE) {
    const auto n_safe = static_cast<uint32_t>(budget * floor);
    oracle_count_winners(heads, n_heads, uint64_t{n_heads} * budget,
                         std::max(1u, n_safe), counts);
  } else if (policy->heads == ORACLE_HEADS_ADAPTIVE_BLEND) {
    oracle_count_winners(heads, n_heads, uint64_t{n_heads} * budget, 0, counts);
  }
  for (uint32_t h = 0; h < n_heads; ++h) {
    const oracle_head& head = heads[h];
    const auto n_forced = static_cast<uint32_t>(
        std::count(head.forced, head.forced + head.n_tokens, 1));
    if (policy->heads == ORACLE_HEADS_EQUAL) counts[h] = budget;
    if (policy->heads == ORACLE_HEADS_ADAPTIVE_BLEND) {
      const uint32_t base = n_asked < budget ? budget - n_asked : 0;
      counts[h] = n_forced + Blend(counts[h] - n_forced,
                                   static_cast<uint32_t>(base * floor), floor);
    }
    if (policy->heads == ORACLE_HEADS_THRESHOLD) {
      const auto least = static_cast<float>(policy->threshold);
      counts[h] = 0;
      for (uint32_t i = 0; i < head.n_tokens; ++i) {
        counts[h] += head.forced[i] || head.scores[i] >= least;
      }
      counts[h] = std::min(counts[h], budget);
    }
    counts[h] = std::min(std::max(counts[h], 1u), head.n_tokens);
  }
}
