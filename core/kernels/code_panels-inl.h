// Directions in 8 bits: which of their products may be above a threshold.
#if defined(KVEVICT_CORE_KERNELS_CODE_PANELS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_CODE_PANELS_INL_H_
#undef KVEVICT_CORE_KERNELS_CODE_PANELS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_CODE_PANELS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/kernels/directions-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Where an instruction adds four products of bytes to a lane, four times as many as of
// floats.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
inline constexpr bool kHasCodes = true;
#else
inline constexpr bool kHasCodes = false;
#endif

// Elements x of [-1, 1] as round(127 x): keys in panels, 128 more, as
// [panels, padded / 4, width, 4].
class CodePanels {
 public:
  // Of n_tokens keys, for products that are to be above `threshold` when added up in
  // f32; memory: Bytes(), aligned to 4.
  CodePanels(size_t dim, uint32_t n_tokens, float threshold, uint8_t* memory)
      : padded_(PaddedRow(dim)),
        limit_(LimitOf(threshold, padded_)),
        limits_(reinterpret_cast<int32_t*>(memory)),
        codes_(memory + Rounded(n_tokens) * sizeof(int32_t)),
        taken_(codes_ + Rounded(n_tokens) * padded_) {}

  static constexpr size_t Bytes(size_t n_tokens, size_t dim) {
    return Rounded(n_tokens) * (sizeof(int32_t) + PaddedRow(dim)) +
           2 * kRowPad * PaddedRow(dim);
  }

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  // A panel of directions. Rows come with 128 more, so each key's products are 128 of
  // its codes more.
  void Add(const float* panel, uint32_t key) const {
    const hn::Repartition<int32_t, RowTag> d;
    const size_t width = RowPanel::Width();
    const size_t lanes = hn::Lanes(d);
    auto* const to = reinterpret_cast<int32_t*>(PanelAt(key));
    for (size_t half = 0; half < width; half += lanes) {
      auto sum = hn::Zero(d);
      for (size_t e = 0; e < padded_; e += 4) {
        const float* const from = panel + e * width + half;
        const auto c0 = CodeOf(from), c1 = CodeOf(from + width);
        const auto c2 = CodeOf(from + 2 * width);
        const auto c3 = CodeOf(from + 3 * width);
        sum = hn::Add(sum, hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)));
        const auto low = hn::Or(c0, hn::ShiftLeft<8>(c1));
        const auto high = hn::Or(hn::ShiftLeft<16>(c2), hn::ShiftLeft<24>(c3));
        hn::StoreU(hn::Or(low, high), d, to + e / 4 * width + half);
      }
      sum = hn::Sub(sum, hn::Set(d, static_cast<int32_t>(128 * padded_)));
      hn::StoreU(hn::Add(hn::Set(d, limit_), hn::ShiftLeft<7>(sum)), d,
                 limits_ + key + half);
    }
  }

  // The keys that rows meet: those of the panel at `key`.
  void Take(uint32_t key) {
    const hn::Repartition<uint32_t, RowTag> d;
    const uint8_t* const codes = PanelAt(key);
    taken_key_ = key;
    for (size_t i = 0; i < padded_ * RowPanel::Width(); i += hn::Lanes(d) * 4) {
      auto* const from = reinterpret_cast<const uint32_t*>(codes + i);
      hn::StoreU(hn::Xor(hn::LoadU(d, from), hn::Set(d, 0x80808080u)), d,
                 reinterpret_cast<uint32_t*>(taken_ + i));
    }
  }

  // Whether any key of rows [row, row + kRowsPerBlock) may be similar to one of them but
  // itself.
  HWY_INLINE bool MayMeet(uint32_t row) const {
    static_assert(kRowsPerBlock == 8);
    const hn::Repartition<int32_t, RowTag> d;
    const hn::Repartition<int8_t, RowTag> d8;
    const hn::Repartition<uint8_t, RowTag> du8;
    const size_t lanes = hn::Lanes(d);
    const size_t step = RowPanel::Width() * 4;
    const auto* rows = reinterpret_cast<const int32_t*>(
        PanelAt(row) + row % RowPanel::Width() * 4);
    const auto* keys = reinterpret_cast<const int8_t*>(taken_);
#define KV_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define KV_BEGIN(r) auto sum##r##a = hn::Zero(d), sum##r##b = sum##r##a;
    KV_EACH_ROW(KV_BEGIN)
#undef KV_BEGIN
#define KV_MULTIPLY_ADD(r)                                          \
  {                                                                 \
    const auto codes = hn::BitCast(du8, hn::Set(d, rows[r]));       \
    sum##r##a = hn::SumOfMulQuadAccumulate(d, codes, a, sum##r##a); \
    sum##r##b = hn::SumOfMulQuadAccumulate(d, codes, b, sum##r##b); \
  }
#define KV_STEP                                     \
  {                                                 \
    const auto a = hn::LoadU(d8, keys);             \
    const auto b = hn::LoadU(d8, keys + 4 * lanes); \
    KV_EACH_ROW(KV_MULTIPLY_ADD)                    \
    keys += step;                                   \
    rows += step / 4;                               \
  }
    // Compilers copy all sums around a loop's body.
    static_assert(kRowPad % 16 == 0);
    for (size_t e = 0; e < padded_; e += 16) {
      KV_STEP KV_STEP KV_STEP KV_STEP
    }
#undef KV_STEP
#undef KV_MULTIPLY_ADD
    if (row - taken_key_ < RowPanel::Width()) {
      const auto lane = hn::Iota(d, static_cast<int32_t>(taken_key_ - row));
      const auto lane_b =
          hn::Add(lane, hn::Set(d, static_cast<int32_t>(lanes)));
      const auto least = hn::Set(d, INT32_MIN);
#define KV_LEAVE_SELF(r)                                                     \
  sum##r##a = hn::IfThenElse(hn::Eq(lane, hn::Set(d, r)), least, sum##r##a); \
  sum##r##b = hn::IfThenElse(hn::Eq(lane_b, hn::Set(d, r)), least, sum##r##b);
      KV_EACH_ROW(KV_LEAVE_SELF)
#undef KV_LEAVE_SELF
    }
    auto most_a = sum0a, most_b = sum0b;
#define KV_MOST(r)                     \
  most_a = hn::Max(most_a, sum##r##a); \
  most_b = hn::Max(most_b, sum##r##b);
    KV_EACH_ROW(KV_MOST)
#undef KV_MOST
#undef KV_EACH_ROW
    return !hn::AllFalse(
        d, hn::Or(hn::Gt(most_a, hn::LoadU(d, limits_ + taken_key_)),
                  hn::Gt(most_b, hn::LoadU(d, limits_ + taken_key_ + lanes))));
  }

 private:
  static HWY_INLINE hn::Vec<hn::Repartition<int32_t, RowTag>> CodeOf(
      const float* from) {
    const RowTag df;
    const hn::Repartition<int32_t, RowTag> d;
    const auto x = hn::Mul(hn::LoadU(df, from), hn::Set(df, 127.0f));
    return hn::Add(hn::NearestInt(x), hn::Set(d, 128));
  }

  uint8_t* PanelAt(uint32_t key) const {
    return codes_ + key / RowPanel::Width() * RowPanel::Width() * padded_;
  }
#else
  void Add(const float*, uint32_t) const {}
  void Take(uint32_t) {}
  bool MayMeet(uint32_t) const { return true; }

 private:
#endif
  // Codes are c = 127 u - e with |e| <= sqrt(padded) / 2: a product u v is c d / 127^2
  // and no more than 2 E + E^2 beside it, E = |e| / 127.
  static int32_t LimitOf(float threshold, size_t padded) {
    const double error = std::sqrt(static_cast<double>(padded)) / 254 * 1.001;
    const double rounding = 1e-5 + 2e-7 * static_cast<double>(padded);
    const double least = threshold - 2.001 * error - error * error - rounding;
    return static_cast<int32_t>(std::floor(least * 127 * 127)) - 1;
  }
  static constexpr size_t Rounded(size_t n_tokens) {
    return (n_tokens + 2 * kRowPad - 1) / (2 * kRowPad) * (2 * kRowPad);
  }

  const size_t padded_;
  const int32_t limit_;    // of products of codes
  int32_t* const limits_;  // [n_tokens]: similar are products above
  uint8_t* const codes_;
  uint8_t* const taken_;  // [padded / 4, width, 4], signed
  uint32_t taken_key_ = 0;
};

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
