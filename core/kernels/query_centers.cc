#include "core/kernels/query_centers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/query_centers.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// ---- Scores ----

// The factors of a key's pairs for a query head, [3, n_padded]: the real part,
// the imaginary part, and the length.
void TurnCenters(const QueryCenters& args, uint32_t head, size_t n_padded,
                 float* HWY_RESTRICT out) {
  const size_t n = args.n_pairs;
  const float* const re = args.centers + head * args.center_stride;
  const float* const im = re + n;
  const float* const length = im + n;
  std::fill_n(out, 3 * n_padded, 0.0f);
  for (size_t f = 0; f < n; ++f) {
    const Complex turn = args.turns[f];
    out[f] = static_cast<float>(re[f] * turn.re - im[f] * turn.im);
    out[n_padded + f] = static_cast<float>(re[f] * turn.im + im[f] * turn.re);
    out[2 * n_padded + f] = static_cast<float>(std::max(
        0.0,
        length[f] - std::sqrt(double{re[f]} * re[f] + double{im[f]} * im[f])));
  }
}

// Rows whose pairs Decode reads in whole vectors: in place or, with
// DecodeCopies, from copies that are padded with zeros.
template <class Decode, bool kInterleaved>
struct PairRows {
  static constexpr size_t kBytes = sizeof(typename Decode::Bits);

  // `copy`: 2 * n_padded floats, zeros where the row has no elements.
  static HWY_INLINE const uint8_t* Find(const QueryCenters& args, uint32_t row,
                                        size_t n_padded, float* copy) {
    if constexpr (!std::is_same_v<Decode, DecodeCopies>) {
      return args.keys.Row(row);
    }
    const size_t n = args.n_pairs;
    if constexpr (kInterleaved) {
      LoadRow(args.keys, row, 0, 2 * n, copy);
    } else {
      LoadRow(args.keys, row, 0, n, copy);
      LoadRow(args.keys, row, n, n, copy + n_padded);
    }
    return reinterpret_cast<const uint8_t*>(copy);
  }

  // Loads pairs [f, f + Lanes(d)).
  template <class D, class V>
  static HWY_INLINE void Load(D d, const uint8_t* row, size_t n_padded,
                              size_t f, V& re, V& im) {
    if constexpr (kInterleaved) {
      const V low = Decode::Load(d, row + 2 * f * kBytes);
      const V high = Decode::Load(d, row + (2 * f + hn::Lanes(d)) * kBytes);
#if HWY_TARGET == HWY_SCALAR
      re = low;
      im = high;
#else
      re = hn::ConcatEven(d, high, low);
      im = hn::ConcatOdd(d, high, low);
#endif
    } else {
      re = Decode::Load(d, row + f * kBytes);
      im = Decode::Load(d, row + (f + n_padded) * kBytes);
    }
  }
};

// Scores two rows for kHeads query heads, to out[head * out_stride] and the
// element after it. Eight sums hide the latency of the products, and sixteen
// registers hold everything.
template <class Rows, size_t kHeads>
HWY_INLINE void ScoreTwo(const uint8_t* row0, const uint8_t* row1,
                         const float* HWY_RESTRICT centers, size_t n_padded,
                         bool has_second, float* out, uint64_t out_stride) {
  static_assert(kHeads == 1 || kHeads == 4);
  const RowTag d;
  using V = hn::VFromD<RowTag>;
  V a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  V b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  for (size_t f = 0; f < n_padded; f += hn::Lanes(d)) {
    V re0, im0, re1, im1;
    Rows::Load(d, row0, n_padded, f, re0, im0);
    Rows::Load(d, row1, n_padded, f, re1, im1);
    const V size0 = hn::Sqrt(hn::MulAdd(re0, re0, hn::Mul(im0, im0)));
    const V size1 = hn::Sqrt(hn::MulAdd(re1, re1, hn::Mul(im1, im1)));
    const auto add = [&](size_t head, V& a, V& b) HWY_ATTR {
      const float* const at = centers + head * 3 * n_padded + f;
      V v = hn::LoadU(d, at);
      a = hn::MulAdd(v, re0, a);
      b = hn::MulAdd(v, re1, b);
      v = hn::LoadU(d, at + n_padded);
      a = hn::MulAdd(v, im0, a);
      b = hn::MulAdd(v, im1, b);
      v = hn::LoadU(d, at + 2 * n_padded);
      a = hn::MulAdd(v, size0, a);
      b = hn::MulAdd(v, size1, b);
    };
    add(0, a0, b0);
    if constexpr (kHeads > 1) {
      add(1, a1, b1);
      add(2, a2, b2);
      add(3, a3, b3);
    }
  }
  const auto store = [&](size_t head, V a, V b) HWY_ATTR {
    out[head * out_stride] = hn::ReduceSum(d, a);
    if (has_second) out[head * out_stride + 1] = hn::ReduceSum(d, b);
  };
  store(0, a0, b0);
  if constexpr (kHeads > 1) {
    store(1, a1, b1);
    store(2, a2, b2);
    store(3, a3, b3);
  }
}

template <class Rows>
void ScoresOf(const QueryCenters& args) {
  const size_t n_padded = PaddedRow(args.n_pairs);
  float* const centers = static_cast<float*>(args.scratch);
  float* const copies = centers + args.group * 3 * n_padded;
  for (uint32_t head = 0; head < args.group; ++head) {
    TurnCenters(args, head, n_padded, centers + head * 3 * n_padded);
  }
  std::fill_n(copies, 4 * n_padded, 0.0f);
  for (uint32_t t = std::min(args.n_sink, args.n_tokens); t < args.n_tokens;
       t += 2) {
    const bool has_second = t + 1 < args.n_tokens;
    const uint8_t* const row0 = Rows::Find(args, t, n_padded, copies);
    const uint8_t* const row1 =
        has_second ? Rows::Find(args, t + 1, n_padded, copies + 2 * n_padded)
                   : row0;
    uint32_t head = 0;
    for (; head + 4 <= args.group; head += 4) {
      ScoreTwo<Rows, 4>(row0, row1, centers + head * 3 * n_padded, n_padded,
                        has_second, args.out + head * args.out_stride + t,
                        args.out_stride);
    }
    for (; head < args.group; ++head) {
      ScoreTwo<Rows, 1>(row0, row1, centers + head * 3 * n_padded, n_padded,
                        has_second, args.out + head * args.out_stride + t,
                        args.out_stride);
    }
  }
}

// ---- Mean and deviation ----

struct Sums {
  double n = 0.0;
  double distance = 0.0;
  double square = 0.0;
};

// Counts finite elements, and sums their distances from a number and the
// squares of these: in f32 over pieces, which are added in double.
Sums SumsAround(const float* row, size_t n, float from) {
  constexpr size_t kPiece = 512;
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const auto origin = hn::Set(d, from);
  Sums sums;
  for (size_t begin = 0; begin < n; begin += kPiece) {
    const size_t end = std::min(n, begin + kPiece);
    auto distance = hn::Zero(d), square = distance, count = distance;
    for (size_t i = begin; i < end; i += lanes) {
      const size_t n_lanes = std::min(lanes, end - i);
      const auto x = hn::LoadN(d, row + i, n_lanes);
      const auto counts = hn::And(hn::IsFinite(x), hn::FirstN(d, n_lanes));
      const auto v = hn::IfThenElseZero(counts, hn::Sub(x, origin));
      distance = hn::Add(distance, v);
      square = hn::MulAdd(v, v, square);
      count = hn::Add(count, hn::IfThenElseZero(counts, hn::Set(d, 1.0f)));
    }
    sums.n += hn::ReduceSum(d, count);
    sums.distance += hn::ReduceSum(d, distance);
    sums.square += hn::ReduceSum(d, square);
  }
  return sums;
}

void Standardise(float* row, size_t n) {
  const Sums raw = SumsAround(row, n, 0.0f);
  const float near = static_cast<float>(raw.n == 0 ? 0 : raw.distance / raw.n);
  // Sums around the rounded mean; its remainder is added to it.
  const Sums around = SumsAround(row, n, near);
  const double rest = around.distance / around.n;
  const double variance = std::max(0.0, around.square / around.n - rest * rest);
  const RowTag d;
  const auto mean = hn::Set(d, near);
  const auto more = hn::Set(d, static_cast<float>(rest));
  const auto scale =
      hn::Set(d, static_cast<float>(1.0 / std::max(std::sqrt(variance), 1e-6)));
  const auto nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t n_lanes = std::min(hn::Lanes(d), n - i);
    const auto x = hn::LoadN(d, row + i, n_lanes);
    const auto z = hn::Mul(hn::Sub(hn::Sub(x, mean), more), scale);
    hn::StoreN(hn::IfThenElse(hn::IsFinite(x), z, nan), d, row + i, n_lanes);
  }
}

void ScoreByCentersOf(const QueryCenters& args) {
  WithDecoderOrCopies(args.keys, args.n_pairs, [&](auto decoder) HWY_ATTR {
    using Decode = decltype(decoder);
    args.is_interleaved ? ScoresOf<PairRows<Decode, true>>(args)
                        : ScoresOf<PairRows<Decode, false>>(args);
  });
  const uint32_t n_sink = std::min(args.n_sink, args.n_tokens);
  for (uint32_t head = 0; head < args.group; ++head) {
    float* const out = args.out + head * args.out_stride;
    std::fill_n(out, n_sink, 0.0f);
    Standardise(out + n_sink, args.n_tokens - n_sink);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(ScoreByCentersOf);

CheckedSize QueryCentersScratchBytes(uint32_t n_pairs, uint32_t group) {
  // The group's centers, and copies of two rows.
  const CheckedSize n_padded = CheckedSize(n_pairs).AlignUp(64);
  return (CheckedSize(group) * CheckedSize(3) + CheckedSize(4)) * n_padded *
         CheckedSize(sizeof(float));
}

void ScoreByCenters(SimdTarget simd, const QueryCenters& args) {
  KV_DISPATCH(simd, ScoreByCentersOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
