#include "core/view/chunks.h"

#include <algorithm>
#include <cmath>

#include "core/policy/policy.h"

namespace kvevict {

Chunks::Chunks(const Policy& policy, uint32_t n_tokens)
    : n_tokens_(n_tokens),
      size_(ChunkTokens(policy, std::max(1u, n_tokens))),
      n_sink_(policy.sink.count),
      n_recent_(ForcedRecentTokens(policy)) {}

uint64_t Chunks::Least() const {
  return Sum([&](uint32_t i) { return LeastOf(i); });
}

uint64_t Chunks::Sinks() const {
  return Sum([&](uint32_t i) { return SinkOf(i); });
}

uint64_t Chunks::TokensAt(double ratio) const {
  return Sum([&](uint32_t i) {
    const double tokens = std::floor(ratio * LengthOf(i));
    return std::max(LeastOf(i), static_cast<uint32_t>(tokens));
  });
}

// All chunks have the same length l except the last, which has m. What they
// keep changes where a share of the tokens is a multiple of 1 / l or 1 / m, so
// shares are counted in units of 1 / (l * m).
uint32_t Chunks::ShareOf(uint32_t chunk, uint64_t level) const {
  const uint32_t other = LengthOf(chunk == Count() - 1 ? 0 : Count() - 1);
  return static_cast<uint32_t>(level / other);
}

void Chunks::Share(uint32_t budget, std::span<uint32_t> counts) const {
  const auto sum = [&](uint64_t level) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < counts.size(); ++i) {
      n += std::max(counts[i], ShareOf(i, level));
    }
    return n;
  };
  uint64_t level = 0;  // the highest level that the budget has room for
  uint64_t above = uint64_t{LengthOf(0)} * LengthOf(Count() - 1) + 1;
  while (above - level > 1) {
    const uint64_t middle = level + (above - level) / 2;
    (sum(middle) <= budget ? level : above) = middle;
  }
  uint64_t left = budget - sum(level);
  for (uint32_t i = 0; i < counts.size(); ++i) {
    counts[i] = std::max(counts[i], ShareOf(i, level));
    const bool gains = left > 0 && counts[i] < LengthOf(i);
    counts[i] += gains;
    left -= gains;
  }
}

}  // namespace kvevict
