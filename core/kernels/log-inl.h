// The natural logarithm of weights.
#if defined(KVEVICT_CORE_KERNELS_LOG_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_LOG_INL_H_
#undef KVEVICT_CORE_KERNELS_LOG_INL_H_
#else
#define KVEVICT_CORE_KERNELS_LOG_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ln(x) for normal x > 0, absolute error under 1e-7 near 1 and relative under
// 2e-7 elsewhere. Other x give an unspecified value.
template <class DF, class V = hn::VFromD<DF>>
HWY_INLINE V LogOf(DF df, V x) {
  const hn::RebindToSigned<DF> di;
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
  const auto bits = hn::BitCast(di, x);
  const auto e =
      hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, int32_t{0x3f3504f3})));
  const V m = hn::BitCast(df, hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const V f = hn::Sub(m, hn::Set(df, 1.0f));
  const V exponent = hn::ConvertTo(df, e);
  // ln(1 + f) = f - f^2 / 2 + f^3 p(f).
  V p = hn::Set(df, 7.0376836292e-2f);
  p = hn::MulAdd(p, f, hn::Set(df, -1.1514610310e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.1676998740e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, -1.2420140846e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.4249322787e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, -1.6668057665e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 2.0000714765e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, -2.4999993993e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 3.3333331174e-1f));
  const V square = hn::Mul(f, f);
  V y = hn::Mul(hn::Mul(p, f), square);
  // ln(2) in two parts, so that no bits of the small one are lost.
  y = hn::MulAdd(exponent, hn::Set(df, -2.12194440e-4f), y);
  y = hn::NegMulAdd(hn::Set(df, 0.5f), square, y);
  return hn::MulAdd(exponent, hn::Set(df, 0.693359375f), hn::Add(f, y));
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
