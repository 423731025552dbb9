// Soft-capping of logits by tanh.
#if defined(KVEVICT_CORE_KERNELS_CAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_CAP_INL_H_
#undef KVEVICT_CORE_KERNELS_CAP_INL_H_
#else
#define KVEVICT_CORE_KERNELS_CAP_INL_H_
#endif

#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kLog2OfE = 1.44269504088896340736f;

// The factor of queries whose logits, in base 2, are then capped.
HWY_INLINE float QueryScale(float scale, float softcap) {
  return softcap == 0.0f ? scale * kLog2OfE : scale / softcap;
}

// c tanh(x), where x is the logit of queries scaled by QueryScale(). tanh is
// within 2^-22.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Cap(D d, V cap, V x) {
  const V t = Exp2(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f * kLog2OfE)));
  const V one = hn::Set(d, 1.0f);
  const V size = hn::Div(hn::Sub(one, t), hn::Add(one, t));
  return hn::Mul(cap, hn::CopySign(size, x));
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
