// The rotation of RoPE by a number of positions, and its application to pairs of
// elements.
#if defined(KVEVICT_CORE_KERNELS_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_TURN_INL_H_
#undef KVEVICT_CORE_KERNELS_TURN_INL_H_
#else
#define KVEVICT_CORE_KERNELS_TURN_INL_H_
#endif

#include <cstdint>

#include "core/dtypes/load-inl.h"
#include "core/kernels/rotate_rows.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// The rotation of pairs for an offset.
struct Rotation {
  HWY_ALIGN float cosines[kMaxPairs];
  HWY_ALIGN float sines[kMaxPairs];
};

// The cosine and sine of an angle in 2^-32 turns.
template <class D, class V = hn::VFromD<D>, class U>
HWY_INLINE void CosineAndSine(D d, U turn, V& cosine, V& sine) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  // The nearest quarter turn, and the rest: at most 1/8 of a turn.
  const U quarter =
      hn::ShiftRight<30>(hn::Add(turn, hn::Set(du, uint32_t{1} << 29)));
  const auto rest = hn::Sub(turn, hn::ShiftLeft<30>(quarter));
  const V t =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(di, rest)), hn::Set(d, 0x1p-32f));
  const V square = hn::Mul(t, t);
  // Interpolated at the Chebyshev nodes of [0, 1/64], the cosine exact at 0;
  // errors of the rounded coefficients 2.4e-8 and 9e-9.
  V s = hn::Set(d, -75.4016113f);
  s = hn::MulAdd(s, square, hn::Set(d, 81.5925446f));
  s = hn::MulAdd(s, square, hn::Set(d, -41.3416634f));
  s = hn::MulAdd(s, square, hn::Set(d, 6.28318548f));
  s = hn::Mul(s, t);
  V c = hn::Set(d, 59.4241066f);
  c = hn::MulAdd(c, square, hn::Set(d, -85.448822f));
  c = hn::MulAdd(c, square, hn::Set(d, 64.9393692f));
  c = hn::MulAdd(c, square, hn::Set(d, -19.7392082f));
  c = hn::MulAdd(c, square, hn::Set(d, 1.0f));
  const auto is_odd = hn::MaskFromVec(hn::BitCast(
      d, hn::Neg(hn::BitCast(di, hn::And(quarter, hn::Set(du, 1u))))));
  const auto sign_of = [&](U half) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<30>(hn::And(half, hn::Set(du, 2u))));
  };
  cosine = hn::Xor(hn::IfThenElse(is_odd, s, c),
                   sign_of(hn::Add(quarter, hn::Set(du, 1u))));
  sine = hn::Xor(hn::IfThenElse(is_odd, c, s), sign_of(quarter));
}

// Finds the rotation of n_pairs by an offset. turns are TurnsOf() each frequency;
// further pairs stay.
HWY_INLINE void FindRotation(const uint64_t* all_turns, uint32_t n_pairs,
                             int32_t offset, Rotation& out) {
  const RowTag d;
  const hn::RebindToUnsigned<RowTag> du;
  HWY_ALIGN uint32_t turns[kMaxPairs] = {};
  for (uint32_t f = 0; f < n_pairs; ++f) {
    // Modulo a turn. A negative offset rotates backwards.
    turns[f] = static_cast<uint32_t>(
        static_cast<uint64_t>(int64_t{offset}) * all_turns[f] >> 32);
  }
  for (uint32_t f = 0; f < n_pairs; f += hn::Lanes(d)) {
    hn::VFromD<RowTag> cosine, sine;
    CosineAndSine(d, hn::Load(du, turns + f), cosine, sine);
    hn::Store(cosine, d, out.cosines + f);
    hn::Store(sine, d, out.sines + f);
  }
}

// Rotates pairs from f on.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE void Turn(D d, const Rotation& rotation, uint32_t f, V& re, V& im) {
  const V c = hn::Load(d, rotation.cosines + f);
  const V s = hn::Load(d, rotation.sines + f);
  const V turned = hn::MulSub(re, c, hn::Mul(im, s));
  im = hn::MulAdd(re, s, hn::Mul(im, c));
  re = turned;
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
