#include "core/kernels/lag.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/lag.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/exp2-inl.h"
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// No product below is an operand of a plain sum, since a compiler that fuses
// the two would change bits. Fused ones are written as MulAdd.

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Spreads are kept in units of ln 2, so that softmax is 2^x.
constexpr float kLog2ESquared = 2.08136898f;

// Channels whose sums are added up before those of the next ones. cuda/ has the
// same number.
constexpr size_t kPieceDims = 128;

// The lesser (greater) one; `x` is left out if it is NaN.
template <class V>
HWY_INLINE V LesserOf(V least, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  return hn::Min(x, least);  // the second operand, if either is NaN
#else
  return hn::IfThenElse(hn::Lt(x, least), x, least);
#endif
}
template <class V>
HWY_INLINE V GreaterOf(V greatest, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
  return hn::Max(x, greatest);
#else
  return hn::IfThenElse(hn::Gt(x, greatest), x, greatest);
#endif
}

// ---- Ranges of the next partition ----

// The least element and 1 / range of every channel over rows [first, first +
// n). Both are 0 if there is no range. Padding channels get values that make
// their zeros x' = 1/2.
template <class Rows>
HWY_INLINE void MeasureRanges(const RowSource& source, uint32_t head_dim,
                              uint32_t first, uint32_t n, float* copies,
                              float* HWY_RESTRICT least,
                              float* HWY_RESTRICT scale) {
  using Decode = typename Rows::Decode;
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t dim = PaddedRow(head_dim);
  std::fill_n(least, dim, kInfinity);   // least so far
  std::fill_n(scale, dim, -kInfinity);  // greatest so far
  RowGroups<Rows> groups(source, first, first + n, head_dim, copies);
  while (groups.Next()) {
    const RowGroup& row = groups.rows;
    for (size_t i = 0; i < dim; i += lanes) {
      const auto a = ElementsAt<Decode>(d, row[0], i);
      const auto b = ElementsAt<Decode>(d, row[1], i);
      const auto c = ElementsAt<Decode>(d, row[2], i);
      const auto e = ElementsAt<Decode>(d, row[3], i);
      auto low = hn::LoadU(d, least + i);
      auto high = hn::LoadU(d, scale + i);
      low = LesserOf(LesserOf(LesserOf(LesserOf(low, a), b), c), e);
      high = GreaterOf(GreaterOf(GreaterOf(GreaterOf(high, a), b), c), e);
      hn::StoreU(low, d, least + i);
      hn::StoreU(high, d, scale + i);
    }
  }
  const auto infinity = hn::Set(d, kInfinity);
  for (size_t i = 0; i < dim; i += lanes) {
    const auto low = hn::LoadU(d, least + i);
    const auto range = hn::Sub(hn::LoadU(d, scale + i), low);
    const auto inverse = hn::Div(hn::Set(d, 1.0f), range);
    const auto is_range =
        hn::And(hn::And(hn::Gt(range, hn::Zero(d)), hn::Lt(range, infinity)),
                hn::Lt(inverse, infinity));
    hn::StoreU(hn::IfThenElseZero(is_range, low), d, least + i);
    hn::StoreU(hn::IfThenElseZero(is_range, inverse), d, scale + i);
  }
  std::fill(least + head_dim, least + dim, -1.0f);
  std::fill(scale + head_dim, scale + dim, 0.5f);
}

// ---- Spreads ----

// out[r] += AddUp() of row r's sums.
HWY_INLINE void AddSums(const float (&sums)[kRowsAtOnce][kRowPad],
                        float (&out)[kRowsAtOnce]) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t r = 0; r < kRowsAtOnce; ++r) {
    float row[kRowPad];
    std::copy_n(sums[r], kRowPad, row);
    out[r] += AddUp(row);
  }
#else
  const FourTag d;
  hn::StoreU(hn::Add(hn::LoadU(d, out), AddUpFour(sums)), d, out);
#endif
}

struct SpreadSums {
  float sum[kRowsAtOnce] = {};
  float squares[kRowsAtOnce] = {};
};

// Adds sums and squares of x' - 1/2 over the channels. The shift does not
// change the spread, and keeps what is subtracted later small. Sum j of a piece
// adds its channels j, j + kRowPad, ...
template <class Decode>
HWY_INLINE void AddChannels(const RowGroup& rows, size_t dim,
                            const float* HWY_RESTRICT least,
                            const float* HWY_RESTRICT scale, SpreadSums* out) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const auto minus_half = hn::Set(d, -0.5f);
  for (size_t first = 0; first < dim; first += kPieceDims) {
    const size_t end = std::min(dim, first + kPieceDims);
    HWY_ALIGN float sums[kRowsAtOnce][kRowPad];
    HWY_ALIGN float squares[kRowsAtOnce][kRowPad];
    for (size_t part = 0; part < kRowPad; part += lanes) {
      auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
      auto q0 = s0, q1 = s0, q2 = s0, q3 = s0;
      for (size_t i = first + part; i < end; i += kRowPad) {
        const auto low = hn::LoadU(d, least + i);
        const auto inverse = hn::LoadU(d, scale + i);
        const auto add = [&](const uint8_t* row, auto& s, auto& q) HWY_ATTR {
          const auto off = hn::Sub(ElementsAt<Decode>(d, row, i), low);
          const auto v = hn::MulAdd(off, inverse, minus_half);
          s = hn::Add(s, v);
          q = hn::MulAdd(v, v, q);
        };
        add(rows[0], s0, q0);
        add(rows[1], s1, q1);
        add(rows[2], s2, q2);
        add(rows[3], s3, q3);
      }
      hn::StoreU(s0, d, sums[0] + part);
      hn::StoreU(s1, d, sums[1] + part);
      hn::StoreU(s2, d, sums[2] + part);
      hn::StoreU(s3, d, sums[3] + part);
      hn::StoreU(q0, d, squares[0] + part);
      hn::StoreU(q1, d, squares[1] + part);
      hn::StoreU(q2, d, squares[2] + part);
      hn::StoreU(q3, d, squares[3] + part);
    }
    AddSums(sums, out->sum);
    AddSums(squares, out->squares);
  }
}

// visit(i, n) for vectors of n lanes that cover [0, count).
template <class Visit>
HWY_INLINE void ForEachVector(size_t count, const Visit& visit) {
  const size_t lanes = hn::Lanes(RowTag());
  for (size_t i = 0; i < count; i += lanes) {
    visit(i, std::min(lanes, count - i));
  }
}

// Turns spreads[i] from the sum into the spread; NaN if not finite.
HWY_INLINE void FinishSpreads(const float* squares, uint32_t n, uint32_t dim,
                              float* spreads) {
  const RowTag d;
  const auto part = hn::Set(d, 1.0f / static_cast<float>(dim));
  const auto unit =
      hn::Set(d, dim == 1 ? 0.0f : kLog2ESquared / static_cast<float>(dim - 1));
  ForEachVector(n, [&](size_t i, size_t lanes) HWY_ATTR {
    const auto sum = hn::LoadN(d, spreads + i, lanes);
    const auto mean = hn::Mul(sum, part);
    const auto rest =
        hn::NegMulAdd(mean, sum, hn::LoadN(d, squares + i, lanes));
    const auto least = hn::IfThenZeroElse(hn::Lt(rest, hn::Zero(d)), rest);
    const auto spread = hn::Sqrt(hn::Mul(least, unit));
    const auto is_finite = hn::Lt(spread, hn::Set(d, kInfinity));
    hn::StoreN(hn::IfThenElse(is_finite, spread, hn::Set(d, kNan)), d,
               spreads + i, lanes);
  });
}

// Writes spreads of rows [first, first + n) relative to the next n rows. The
// next partition will read n_later rows after those.
template <class Rows>
HWY_INLINE void MeasureSpreads(const RowSource& source, uint32_t dim,
                               uint32_t first, uint32_t n, uint32_t n_later,
                               float* ranges, float* squares, float* spreads) {
  const size_t padded = PaddedRow(dim);
  float* const least = ranges;
  float* const scale = ranges + padded;
  float* const copies = ranges + 2 * padded;
  MeasureRanges<Rows>(source, dim, first + n, n, copies, least, scale);
  const uint32_t n_bytes = Rows::NearBytes(source, dim);
  RowGroups<Rows> groups(source, first, first + n, dim, copies);
  while (groups.Next()) {
    const uint32_t t = groups.first() - first;
    // Prefetches those rows while these are processed.
    AskForRows(source, first + 2 * n + t,
               first + 2 * n + std::min(t + groups.size(), n_later), n_bytes);
    SpreadSums sums;
    AddChannels<typename Rows::Decode>(groups.rows, padded, least, scale,
                                       &sums);
    std::copy_n(sums.sum, groups.size(), spreads + t);
    std::copy_n(sums.squares, groups.size(), squares + t);
  }
  FinishSpreads(squares, n, dim, spreads);
}

// ---- Scores ----

// spreads[i] = 2^(spreads[i] - greatest). Returns 1 / their sum. NaN is left
// out of both.
HWY_INLINE float Soften(uint32_t n, float* spreads) {
  const RowTag d;
  auto greatest = hn::Zero(d);
  ForEachVector(n, [&](size_t i, size_t lanes) HWY_ATTR {
    greatest = GreaterOf(greatest, hn::LoadN(d, spreads + i, lanes));
  });
  greatest = hn::MaxOfLanes(d, greatest);
  HWY_ALIGN float sums[kRowsAtOnce][kRowPad] = {};
  ForEachVector(n, [&](size_t i, size_t lanes) HWY_ATTR {
    const auto weight =
        Exp2(d, hn::Sub(hn::LoadN(d, spreads + i, lanes), greatest));
    hn::StoreN(weight, d, spreads + i, lanes);
    float* const sum = sums[0] + i % kRowPad;
    const auto added = hn::IfThenElseZero(
        hn::And(hn::FirstN(d, lanes), hn::Eq(weight, weight)), weight);
    hn::StoreU(hn::Add(hn::LoadU(d, sum), added), d, sum);
  });
  float sum[kRowsAtOnce] = {};
  AddSums(sums, sum);
  return 1.0f / sum[0];
}

// out[i] = the mean of the weights of keys and of values.
HWY_INLINE void AddWeights(uint32_t n, const float* values, float v_scale,
                           float k_scale, float* out) {
  const RowTag d;
  ForEachVector(n, [&](size_t i, size_t lanes) HWY_ATTR {
    const auto of_keys =
        hn::Mul(hn::LoadN(d, out + i, lanes), hn::Set(d, k_scale));
    const auto sum = hn::MulAdd(hn::LoadN(d, values + i, lanes),
                                hn::Set(d, v_scale), of_keys);
    hn::StoreN(hn::Mul(sum, hn::Set(d, 0.5f)), d, out + i, lanes);
  });
}

// Up to this many are ranked by comparing each with each, which then takes less
// time than sorting.
constexpr uint32_t kMostCompared = 256;

// sum + the count of numbers[begin, end) for which is_below holds. Four sums
// hide its latency.
template <class V, class Below>
HWY_INLINE V CountBelow(const float* numbers, uint32_t begin, uint32_t end,
                        V sum, const Below& is_below) {
  const RowTag d;
  const auto one = hn::Set(d, 1.0f);
  auto s1 = hn::Zero(d), s2 = s1, s3 = s1;
  const auto count = [&](uint32_t j) HWY_ATTR {
    return hn::IfThenElseZero(is_below(hn::Set(d, numbers[j])), one);
  };
  uint32_t j = begin;
  for (; j + 4 <= end; j += 4) {
    sum = hn::Add(sum, count(j));
    s1 = hn::Add(s1, count(j + 1));
    s2 = hn::Add(s2, count(j + 2));
    s3 = hn::Add(s3, count(j + 3));
  }
  for (; j < end; ++j) sum = hn::Add(sum, count(j));
  return hn::Add(hn::Add(sum, s1), hn::Add(s2, s3));
}

// Replaces numbers, none of which is negative, by their ranks from below / n.
// The earlier of two equal numbers ranks higher.
void RankFew(uint32_t n, float* numbers, float* out) {
  const RowTag d;
  for (uint32_t i = 0; i < n; ++i) {
    numbers[i] = std::isnan(out[i]) ? -1.0f : out[i];
  }
  const auto unit = hn::Set(d, 1.0f / static_cast<float>(n));
  ForEachVector(n, [&](size_t i, size_t lanes) HWY_ATTR {
    const auto own = hn::LoadN(d, numbers + i, lanes);
    const auto begin = static_cast<uint32_t>(i);
    const auto end = static_cast<uint32_t>(i + lanes);
    using V = decltype(own);
    auto place =
        CountBelow(numbers, 0, begin, hn::Zero(d),
                   [&](V other) HWY_ATTR { return hn::Lt(other, own); });
    place = CountBelow(numbers, end, n, place,
                       [&](V other) HWY_ATTR { return hn::Le(other, own); });
    for (uint32_t j = begin; j < end; ++j) {
      const auto other = hn::Set(d, numbers[j]);
      const auto is_later = hn::FirstN(d, j - begin);
      const auto below =
          hn::Or(hn::Lt(other, own), hn::And(is_later, hn::Eq(other, own)));
      place = hn::Add(place, hn::IfThenElseZero(below, hn::Set(d, 1.0f)));
    }
    const auto score = hn::IfThenElse(hn::Lt(own, hn::Zero(d)),
                                      hn::Set(d, kNan), hn::Mul(place, unit));
    hn::StoreN(score, d, out + i, lanes);
  });
}

// The same for any n.
void RankMany(uint32_t n, uint64_t* order, float* out) {
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, out + i, sizeof(bits));
    const uint32_t key = std::isnan(out[i]) ? 0 : bits + 1;
    // The earlier of two equal numbers comes later.
    order[i] = uint64_t{key} << 32 | (UINT32_MAX - i);
  }
  std::sort(order, order + n);
  const float unit = 1.0f / static_cast<float>(n);
  for (uint32_t place = 0; place < n; ++place) {
    const auto i = UINT32_MAX - static_cast<uint32_t>(order[place]);
    out[i] = order[place] >> 32 == 0 ? kNan : static_cast<float>(place) * unit;
  }
}

// The first part of the scratch: ranges and copies of rows.
size_t RangesFloats(uint32_t k_head_dim, uint32_t v_head_dim) {
  return (2 + kRowsAtOnce) * PaddedRow(std::max(k_head_dim, v_head_dim));
}

void ScoreByLag(const LagScores& args) {
  const uint32_t n = args.partition;
  const uint32_t n_sink = std::min(args.n_sink, args.n_tokens);
  const uint32_t n_ranked = args.n_tokens - n_sink;
  std::fill_n(args.out, args.n_tokens, 1.0f);
  if (n_ranked / n < 2) {
    const float unit = 1.0f / static_cast<float>(n_ranked);
    for (uint32_t i = 0; i < n_ranked; ++i) {
      args.out[n_sink + i] = static_cast<float>(i) * unit;
    }
    return;
  }
  // After the ranges come spreads of values and squares, and then the order.
  auto* const ranges = reinterpret_cast<float*>(args.scratch);
  float* const values = ranges + RangesFloats(args.k_head_dim, args.v_head_dim);
  float* const squares = values + n;
  for (uint32_t p = 0; p + 1 < n_ranked / n; ++p) {
    const uint32_t first = n_sink + p * n;
    const uint32_t n_later = p + 2 < n_ranked / n ? n : 0;
    float* const out = args.out + first;
    const auto measure = [&](const RowSource& source, uint32_t dim,
                             float* spreads) HWY_ATTR {
      WithWholeRows(source, dim, [&](auto rows) HWY_ATTR {
        MeasureSpreads<decltype(rows)>(source, dim, first, n, n_later, ranges,
                                       squares, spreads);
      });
    };
    measure(args.keys, args.k_head_dim, out);
    measure(args.values, args.v_head_dim, values);
    const float k_scale = Soften(n, out);
    const float v_scale = Soften(n, values);
    AddWeights(n, values, v_scale, k_scale, out);
    if (!args.ranks) continue;
    if (n <= kMostCompared) {
      RankFew(n, values, out);
    } else {
      RankMany(n, reinterpret_cast<uint64_t*>(values), out);
    }
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(ScoreByLag);

uint64_t LagScratchBytes(uint32_t k_head_dim, uint32_t v_head_dim,
                         uint32_t partition) {
  return (HWY_STATIC_DISPATCH(RangesFloats)(k_head_dim, v_head_dim) +
          2 * uint64_t{partition}) *
         sizeof(float);
}

void ComputeLagScores(SimdTarget simd, const LagScores& args) {
  KV_DISPATCH(simd, ScoreByLag)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
