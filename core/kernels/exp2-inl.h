// 2^x for softmax: the exponent is never large, and tiny results may become
// zero.
#if defined(KVEVICT_CORE_KERNELS_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_EXP2_INL_H_
#undef KVEVICT_CORE_KERNELS_EXP2_INL_H_
#else
#define KVEVICT_CORE_KERNELS_EXP2_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 2^x for x <= 127, relative error under 2e-7; 0 for x < -126, NaN for NaN.
// Larger x, +infinity included, give an unspecified value.
template <class DF, class V = hn::VFromD<DF>>
HWY_INLINE V Exp2(DF df, V x) {
  const hn::RebindToUnsigned<DF> du;
  // Adding 1.5 * 2^23 rounds x to an integer n and leaves it in the low
  // bits: 1.4x faster than NearestInt. The 127 more make these bits the
  // exponent of 2^n.
  const V shift = hn::Set(df, 12582912.0f + 127.0f);
  const V rounded = hn::Add(x, shift);
  const V f = hn::Sub(x, hn::Sub(rounded, shift));  // in [-0.5, 0.5]
  const V power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(du, rounded)));
  // 2^f, interpolated at the Chebyshev nodes of [-0.5, 0.5] and exact at 0;
  // error of the rounded coefficients 9.2e-9.
  V p = hn::Set(df, 1.5453163e-4f);
  p = hn::MulAdd(p, f, hn::Set(df, 1.33908633e-3f));
  p = hn::MulAdd(p, f, hn::Set(df, 9.61808302e-3f));
  p = hn::MulAdd(p, f, hn::Set(df, 5.55035695e-2f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.240226507f));
  p = hn::MulAdd(p, f, hn::Set(df, 0.693147182f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0f));
  // A product, not a sum of exponents: NaN stays NaN. The comparison is false
  // for NaN.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -126.0f)), hn::Mul(p, power));
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
