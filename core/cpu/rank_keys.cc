#include "core/cpu/rank_keys.h"

#include <algorithm>

#include "core/kernels/topk.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kOutKey = kNanKey;

// The number of keys of each rank that are not forced, in descending ranks.
class RankCounts {
 public:
  void Add(int32_t rank, uint32_t n) {
    size_t i = 0;
    while (i < n_ranks_ && of_[i].rank > rank) ++i;
    if (i == n_ranks_ || of_[i].rank != rank) {
      std::move_backward(of_ + i, of_ + n_ranks_, of_ + n_ranks_ + 1);
      of_[i] = {rank, 0};
      ++n_ranks_;
    }
    of_[i].n += n;
  }
  // The rank of the n-th key, counted from 1, or the lowest rank.
  int32_t RankOf(uint32_t n) const {
    size_t i = 0;
    while (i + 1 < n_ranks_ && of_[i].n < n) n -= of_[i++].n;
    return of_[i].rank;
  }

 private:
  struct Count {
    int32_t rank;
    uint32_t n;
  };
  Count of_[TokenRanges::kMost + 1];
  size_t n_ranks_ = 0;
};

}  // namespace

void RankKeys(SimdTarget simd, const SlotRanks& ranks, uint32_t n_best,
              uint32_t* keys) {
  RankCounts counts;
  uint32_t n_forced = 0;
  ranks.ForEach([&](const RankedSlots& slots) {
    const uint32_t n = slots.end - slots.begin;
    const uint32_t n_of_forced =
        CountGreater(simd, keys + slots.begin, n, kForcedKey - 1);
    n_forced += n_of_forced;
    counts.Add(slots.rank, n - n_of_forced);
  });
  if (n_best <= n_forced) return;
  const int32_t cut = counts.RankOf(n_best - n_forced);
  ranks.ForEach([&](const RankedSlots& slots) {
    uint32_t* const begin = keys + slots.begin;
    uint32_t* const end = keys + slots.end;
    if (slots.rank > cut) {
      std::fill(begin, end, kForcedKey);
    } else if (slots.rank == cut) {
      for (uint32_t* key = begin; key < end; ++key) {
        *key = std::max(*key, kOutKey + 1);
      }
    } else {
      for (uint32_t* key = begin; key < end; ++key) {
        *key = *key == kForcedKey ? kForcedKey : kOutKey;
      }
    }
  });
}

}  // namespace kvevict::cpu
