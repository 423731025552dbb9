#include "core/kernels/weigh.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/weigh.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void Weigh(const float* weights, size_t n, float epsilon, float* scores) {
  const hn::ScalableTag<float> d;
  const auto infinity = hn::Inf(d);
  const auto more = hn::Set(d, epsilon);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t lanes = std::min(hn::Lanes(d), n - i);
    const auto score = hn::LoadN(d, scores + i, lanes);
    const auto weighed =
        hn::Mul(hn::Add(score, more), hn::LoadN(d, weights + i, lanes));
    hn::StoreN(hn::IfThenElse(hn::Eq(score, infinity), score, weighed), d,
               scores + i, lanes);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(Weigh);

void WeighScores(SimdTarget simd, const float* weights, size_t n, float epsilon,
                 float* scores) {
  KV_DISPATCH(simd, Weigh)(weights, n, epsilon, scores);
}

}  // namespace kvevict
#endif  // HWY_ONCE
