// Vector code that matmul and attention share: loads of any cache dtype, exp2, and
// the inner loop of a matrix product.
#if defined(KVEVICT_TOOLS_ENGINE_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_TOOLS_ENGINE_VECTOR_INL_H_
#undef KVEVICT_TOOLS_ENGINE_VECTOR_INL_H_
#else
#define KVEVICT_TOOLS_ENGINE_VECTOR_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::tools {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// ---- f32 from f32, f16 and bf16; `n` valid elements, zeros after them ----

HWY_INLINE VF LoadAsF32(DF d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE VF LoadAsF32(DF d, const float* from, size_t n) {
  return hn::LoadN(d, from, n);
}
template <typename T>  // hwy::float16_t, hwy::bfloat16_t
HWY_INLINE VF LoadAsF32(DF d, const T* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, DF>(), from));
}
template <typename T>
HWY_INLINE VF LoadAsF32(DF d, const T* from, size_t n) {
  return hn::PromoteTo(d, hn::LoadN(hn::Rebind<T, DF>(), from, n));
}

// ---- 2^x for x <= 0; 0 below -125, relative error 2e-7 ----

HWY_INLINE VF Exp2(DF d, VF x) {
  const hn::RebindToSigned<DF> di;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits, from
  // where it goes to the exponent: cheaper than a conversion and back.
  const VF magic = hn::Set(d, 12582912.0f);
  const VF lowest = hn::Set(d, -125.0f);
  const auto tiny = hn::Lt(x, lowest);
  x = hn::Max(x, lowest);
  const VF shifted = hn::Add(x, magic);
  const VF f = hn::Sub(x, hn::Sub(shifted, magic));
  // Interpolates 2^f on [-1/2, 1/2] at the Chebyshev points.
  VF p = hn::Set(d, 0x1.444000p-13f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.5f48c0p-10f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3b2a1cp-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6aeccp-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebfbe0p-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e430p-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const VF power = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(tiny, power);
}

// ---- c[4, 2 vectors] (+)= a[4, n_inner] * b[n_inner, 2 vectors] ----

// Eight accumulators hide the latency of the FMAs and, with four broadcasts and two
// loads beside them, fit the 16 registers of AVX2.
constexpr size_t kGemmRows = 4;

HWY_INLINE size_t GemmCols() { return 2 * hn::Lanes(DF()); }

struct GemmBlock {
  const float* a;
  size_t a_stride;
  const float* b;
  size_t b_stride;
  float* c;
  size_t c_stride;
  size_t n_inner;
  size_t n_rows;  // 1 .. kGemmRows
  size_t n_cols;  // 1 .. GemmCols()
  bool accumulate;
};

// kFull: n_cols = GemmCols(). Missing rows are computed as copies of the last one.
template <bool kFull>
HWY_INLINE void MultiplyBlock(const GemmBlock& g) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t n0 = std::min(g.n_cols, lanes);
  const size_t n1 = g.n_cols - n0;
  const auto load = [&](const float* from, size_t n) HWY_ATTR {
    return kFull ? hn::LoadU(d, from) : hn::LoadN(d, from, n);
  };
  const size_t r1 = std::min<size_t>(1, g.n_rows - 1);
  const size_t r2 = std::min<size_t>(2, g.n_rows - 1);
  const size_t r3 = g.n_rows - 1;
  const float* HWY_RESTRICT a0 = g.a;
  const float* HWY_RESTRICT a1 = g.a + r1 * g.a_stride;
  const float* HWY_RESTRICT a2 = g.a + r2 * g.a_stride;
  const float* HWY_RESTRICT a3 = g.a + r3 * g.a_stride;
  float* c0 = g.c;
  float* c1 = g.c + r1 * g.c_stride;
  float* c2 = g.c + r2 * g.c_stride;
  float* c3 = g.c + r3 * g.c_stride;
  VF s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00;
  VF s20 = s00, s21 = s00, s30 = s00, s31 = s00;
  if (g.accumulate) {
    s00 = load(c0, n0), s01 = load(c0 + lanes, n1);
    s10 = load(c1, n0), s11 = load(c1 + lanes, n1);
    s20 = load(c2, n0), s21 = load(c2 + lanes, n1);
    s30 = load(c3, n0), s31 = load(c3 + lanes, n1);
  }
  const float* HWY_RESTRICT b = g.b;
  for (size_t k = 0; k < g.n_inner; ++k, b += g.b_stride) {
    const VF b0 = load(b, n0);
    const VF b1 = load(b + lanes, n1);
    const VF x0 = hn::Set(d, a0[k]);
    s00 = hn::MulAdd(x0, b0, s00), s01 = hn::MulAdd(x0, b1, s01);
    const VF x1 = hn::Set(d, a1[k]);
    s10 = hn::MulAdd(x1, b0, s10), s11 = hn::MulAdd(x1, b1, s11);
    const VF x2 = hn::Set(d, a2[k]);
    s20 = hn::MulAdd(x2, b0, s20), s21 = hn::MulAdd(x2, b1, s21);
    const VF x3 = hn::Set(d, a3[k]);
    s30 = hn::MulAdd(x3, b0, s30), s31 = hn::MulAdd(x3, b1, s31);
  }
  const auto store = [&](VF v0, VF v1, float* to) HWY_ATTR {
    if constexpr (kFull) {
      hn::StoreU(v0, d, to);
      hn::StoreU(v1, d, to + lanes);
    } else {
      hn::StoreN(v0, d, to, n0);
      hn::StoreN(v1, d, to + lanes, n1);
    }
  };
  store(s00, s01, c0);
  if (g.n_rows > 1) store(s10, s11, c1);
  if (g.n_rows > 2) store(s20, s21, c2);
  if (g.n_rows > 3) store(s30, s31, c3);
}

HWY_INLINE void Multiply(const GemmBlock& g) {
  if (g.n_cols == GemmCols()) {
    MultiplyBlock<true>(g);
  } else {
    MultiplyBlock<false>(g);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvevict::tools
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
