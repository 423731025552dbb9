#include "core/kernels/raise_to_mean.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/raise_to_mean.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef KVEVICT_CORE_KERNELS_RAISE_TO_MEAN_SUMS
#define KVEVICT_CORE_KERNELS_RAISE_TO_MEAN_SUMS
namespace kvevict {

constexpr size_t kMeanSums = 256;  // the threads of a block on a GPU

}  // namespace kvevict
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Adds every 256th score to one of the sums.
void AddToSums(const float* scores, size_t n, float* sums) {
  const hn::CappedTag<float, kMeanSums> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t begin = 0; begin < n; begin += kMeanSums) {
    const size_t end = std::min(n - begin, kMeanSums);
    for (size_t i = 0; i < end; i += lanes) {
      const auto term =
          hn::LoadN(d, scores + begin + i, std::min(lanes, end - i));
      hn::StoreU(hn::Add(hn::LoadU(d, sums + i), term), d, sums + i);
    }
  }
}

void RaiseTo(float least, size_t n, float* scores) {
  const hn::ScalableTag<float> d;
  const auto floor = hn::Set(d, least);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t lanes = std::min(hn::Lanes(d), n - i);
    const auto score = hn::LoadN(d, scores + i, lanes);
    hn::StoreN(hn::IfThenElse(hn::Lt(score, floor), floor, score), d,
               scores + i, lanes);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(AddToSums);
HWY_EXPORT(RaiseTo);

float SumScores(SimdTarget simd, const float* scores, size_t n) {
  float sums[kMeanSums] = {};
  KV_DISPATCH(simd, AddToSums)(scores, n, sums);
  for (size_t half = kMeanSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

void RaiseToMean(SimdTarget simd, float* scores, size_t n) {
  if (n == 0) return;
  const float mean = SumScores(simd, scores, n) / static_cast<float>(n);
  if (std::isfinite(mean)) KV_DISPATCH(simd, RaiseTo)(mean, n, scores);
}

}  // namespace kvevict
#endif  // HWY_ONCE
