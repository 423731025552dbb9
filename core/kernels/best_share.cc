#include "core/kernels/best_share.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/kernels/topk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/best_share.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef KVEVICT_CORE_KERNELS_BEST_SHARE_SUMS
#define KVEVICT_CORE_KERNELS_BEST_SHARE_SUMS
namespace kvevict {

// Of scores that take part: all, and those above the cut.
constexpr size_t kShareSums = 256;
struct ShareSums {
  float all[kShareSums] = {};
  float best[kShareSums] = {};
};

}  // namespace kvevict
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void AddShares(const uint32_t* keys, const float* scores, size_t n,
               uint32_t cut, ShareSums* sums) {
  const hn::CappedTag<float, kShareSums> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto above = hn::Set(du, cut);
  for (size_t begin = 0; begin < n; begin += kShareSums) {
    const size_t end = std::min(n - begin, kShareSums);
    for (size_t i = 0; i < end; i += lanes) {
      const size_t m = std::min(lanes, end - i);
      // Of those that are not there the key is 0, which is NaN's.
      const auto key = hn::LoadN(du, keys + begin + i, m);
      const auto score = hn::LoadN(d, scores + begin + i, m);
      const auto counts = hn::And(hn::Ne(key, hn::Set(du, kNanKey)),
                                  hn::Ne(key, hn::Set(du, kForcedKey)));
      const auto wins = hn::And(counts, hn::Gt(key, above));
      const auto add = [&](hn::Mask<decltype(du)> mask, float* to) {
        const auto term = hn::IfThenElseZero(hn::RebindMask(d, mask), score);
        hn::StoreU(hn::Add(hn::LoadU(d, to), term), d, to);
      };
      add(counts, sums->all + i);
      add(wins, sums->best + i);
    }
  }
}

void Scale(float by, size_t n, const float* scores, float* out) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, by);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t m = std::min(hn::Lanes(d), n - i);
    hn::StoreN(hn::Mul(hn::LoadN(d, scores + i, m), factor), d, out + i, m);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(AddShares);
HWY_EXPORT(Scale);

float SumOf(float (&sums)[kShareSums]) {
  for (size_t n = kShareSums / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

float ScoreOfKey(uint32_t key) {
  return std::bit_cast<float>(key >> 31 != 0 ? key ^ 0x80000000u : ~key);
}

// 1 where it is no finite number above 0.
float BestShare(SimdTarget simd, const uint32_t* keys, uint32_t n,
                uint32_t n_best, const float* scores) {
  const uint32_t n_forced = CountGreater(simd, keys, n, kForcedKey - 1);
  if (n_best == 0 || n_forced == n) return 1.0f;
  const KeyCut cut =
      FindKeyCut(simd, keys, n, n_forced + std::min(n_best, n - n_forced));
  ShareSums sums;
  KV_DISPATCH(simd, AddShares)(keys, scores, n, cut.key, &sums);
  float best = SumOf(sums.best);
  if (cut.key != kNanKey) {
    // In double the product is exact: it is rounded here, by itself.
    best += static_cast<float>(double{static_cast<float>(cut.n_needed)} *
                               ScoreOfKey(cut.key));
  }
  const float share = best / SumOf(sums.all);
  const bool scales =
      share > 0.0f && share <= std::numeric_limits<float>::max();
  return scales ? share : 1.0f;
}

}  // namespace

void ScaleByBestShare(SimdTarget simd, const uint32_t* keys, uint32_t n,
                      uint32_t n_best, const float* scores, float* out) {
  const float share = BestShare(simd, keys, n, n_best, scores);
  if (share == 1.0f && out == scores) return;
  KV_DISPATCH(simd, Scale)(share, n, scores, out);
}

}  // namespace kvevict
#endif  // HWY_ONCE
