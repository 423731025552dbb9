#include "core/kernels/head_split.h"

#include <algorithm>
#include <cmath>

#include "core/kernels/topk.h"

namespace kvevict {
namespace {

class Contest {
 public:
  Contest(SimdTarget simd, const HeadContest& in) : simd_(simd), in_(in) {}

  void Run(uint32_t n_safe) {
    n_safe_ = n_safe;
    FindCut();
    CountAboveCut();
    DealTies(n_left_, in_.n_lists, {in_.scratch, in_.scratch_stride},
             {in_.counts, 1});
  }
  uint32_t TokensOf(uint32_t list) const { return in_.tokens.Of(list); }
  // The number of keys of a list that are larger than `key`.
  uint32_t Greater(uint32_t list, uint32_t key) const {
    return CountGreater(simd_, Keys(list), TokensOf(list), key);
  }
  uint32_t Forced(uint32_t list) const { return Greater(list, kForcedKey - 1); }
  void Set(uint32_t list, uint32_t count) const {
    const uint32_t most = std::min(TokensOf(list), in_.most);
    in_.counts[list] = std::min(std::max(count, 1u), most);
  }

 private:
  const uint32_t* Keys(uint32_t list) const {
    return in_.keys + uint64_t{list} * in_.tokens.most;
  }
  uint32_t SafeOf(uint32_t list) const {
    return std::min(n_safe_, TokensOf(list));
  }
  // The number of keys equal to the cut that are not counted yet.
  uint32_t& Ties(uint32_t list) const {
    return in_.scratch[list * in_.scratch_stride];
  }

  // Finds the smallest key that stays because of its rank, digit by digit: the
  // largest one for which enough stay.
  void FindCut() {
    uint64_t n_tokens = 0;
    for (uint32_t i = 0; i < in_.n_lists; ++i) n_tokens += TokensOf(i);
    n_left_ = std::min(in_.together, n_tokens);
    for (const KeyDigit& digit : kKeyDigits) {
      uint32_t bins[kMaxKeyBins];
      uint64_t kept[kMaxKeyBins] = {};  // if keys from this digit on stay
      const uint32_t n_bins = 1u << digit.n_bits;
      const uint32_t above = digit.shift + digit.n_bits;
      for (uint32_t list = 0; list < in_.n_lists; ++list) {
        CountKeyDigit(simd_, Keys(list), TokensOf(list), digit, cut_, bins);
        // Keys with larger prefixes.
        uint32_t n = above == 32
                         ? 0
                         : Greater(list, (cut_ << above) + (1u << above) - 1);
        for (uint32_t b = n_bins; b-- > 0;) {
          n += bins[b];
          kept[b] += std::max(n, SafeOf(list));
        }
      }
      uint32_t b = n_bins - 1;
      while (kept[b] < n_left_) --b;
      cut_ = (cut_ << digit.n_bits) + b;
    }
  }

  void CountAboveCut() {
    for (uint32_t list = 0; list < in_.n_lists; ++list) {
      const uint32_t n_greater = Greater(list, cut_);
      const uint32_t n_from =
          cut_ == 0 ? TokensOf(list) : Greater(list, cut_ - 1);
      const uint32_t count = std::max(n_greater, SafeOf(list));
      in_.counts[list] = count;
      Ties(list) = std::max(n_from, count) - count;
      n_left_ -= count;
    }
  }

  const SimdTarget simd_;
  const HeadContest& in_;
  uint32_t n_safe_ = 0;
  uint64_t n_left_ = 0;  // keys to keep that are not counted yet
  uint32_t cut_ = 0;
};

}  // namespace

void DealTies(uint64_t n_left, uint64_t n_lists, const ListNumbers& ties,
              const ListNumbers& counts) {
  uint32_t level = 0;
  for (uint32_t bit = 1u << 31; bit > 0; bit /= 2) {
    uint64_t n_dealt = 0;
    for (uint64_t list = 0; list < n_lists; ++list) {
      n_dealt += std::min(ties[list], level + bit);
    }
    if (n_dealt <= n_left) level += bit;
  }
  for (uint64_t list = 0; list < n_lists; ++list) {
    n_left -= std::min(ties[list], level);
  }
  for (uint64_t list = 0; list < n_lists; ++list) {
    const bool one_more = ties[list] > level && n_left > 0;
    counts[list] += std::min(ties[list], level) + one_more;
    n_left -= one_more;
  }
}

void CountWinners(SimdTarget simd, const HeadContest& contest,
                  uint32_t n_safe) {
  Contest(simd, contest).Run(n_safe);
}

void BlendWinners(SimdTarget simd, const HeadContest& in, uint32_t n_own,
                  float won_part) {
  Contest contest(simd, in);
  contest.Run(0);
  for (uint32_t list = 0; list < in.n_lists; ++list) {
    const uint32_t n_forced = contest.Forced(list);
    // In double the product is exact, so it is rounded here once.
    const auto won =
        static_cast<float>(double{won_part} * (in.counts[list] - n_forced));
    const float kept = std::nearbyint(won + static_cast<float>(n_own));
    contest.Set(list, n_forced + static_cast<uint32_t>(kept));
  }
}

void CountPassing(SimdTarget simd, const HeadContest& in, float threshold) {
  const Contest contest(simd, in);
  uint32_t least = 0;
  ScoresToKeys(simd, &threshold, 1, &least);
  for (uint32_t list = 0; list < in.n_lists; ++list) {
    contest.Set(list, std::min(in.budget, contest.Greater(list, least - 1)));
  }
}

}  // namespace kvevict
