// Directions as 8-bit codes, to find which of their products may exceed a
// threshold.
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

// Used only if an instruction adds four byte products to a lane, which is four
// times as many as with floats.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
inline constexpr bool kHasCodes = true;
#else
inline constexpr bool kHasCodes = false;
#endif

// Elements x in [-1, 1] as codes c = round(127 x). Keys are in panels, as
// [panels, padded / 4, width, 4].
class CodePanels {
 public:
  // For n_tokens keys, and products that must exceed `threshold` when added in
  // f32. memory: Bytes(), aligned to 4.
  CodePanels(size_t dim, uint32_t n_tokens, float threshold, uint8_t* memory)
      : padded_(PaddedRow(dim)),
        cut_(padded_ - padded_ / 8 / 16 * 16),
        threshold_(threshold),
        offsets_(reinterpret_cast<int32_t*>(memory)),
        cut_offsets_(offsets_ + Rounded(n_tokens)),
        rests_(cut_offsets_ + Rounded(n_tokens)),
        codes_(reinterpret_cast<uint8_t*>(rests_ + Rounded(n_tokens))),
        taken_(codes_ + Rounded(n_tokens) * padded_) {}

  static constexpr size_t Bytes(size_t n_tokens, size_t dim) {
    return Rounded(n_tokens) * (3 * sizeof(int32_t) + PaddedRow(dim)) +
           kBlock * PaddedRow(dim);
  }

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  // Adds a panel of directions. Rows are stored with 128 added to each code, so
  // each key's products are too large by 128 times the sum of its codes.
  void Add(const float* panel, uint32_t key) {
    const RowTag df;
    const hn::Repartition<int32_t, RowTag> d;
    const size_t width = RowPanel::Width();
    const size_t lanes = hn::Lanes(d);
    const auto low = hn::Set(d, 0xff);
    auto* const to = reinterpret_cast<int32_t*>(PanelAt(key));
    for (size_t half = 0; half < width; half += lanes) {
      auto sum = hn::Zero(d);
      auto error = hn::Zero(df), rest = error;
      for (size_t e = 0; e < padded_; e += 4) {
        if (e == cut_) {
          hn::StoreU(hn::ShiftLeft<7>(sum), d, cut_offsets_ + key + half);
          rest = hn::Zero(df);
        }
        const float* const from = panel + e * width + half;
        const auto c0 = CodeOf(from, error, rest);
        const auto c1 = CodeOf(from + width, error, rest);
        const auto c2 = CodeOf(from + 2 * width, error, rest);
        const auto c3 = CodeOf(from + 3 * width, error, rest);
        sum = hn::Add(sum, hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)));
        const auto c01 =
            hn::Or(hn::And(c0, low), hn::ShiftLeft<8>(hn::And(c1, low)));
        const auto c23 =
            hn::Or(hn::ShiftLeft<16>(hn::And(c2, low)), hn::ShiftLeft<24>(c3));
        hn::StoreU(hn::Or(c01, c23), d, to + e / 4 * width + half);
      }
      hn::StoreU(hn::ShiftLeft<7>(sum), d, offsets_ + key + half);
      const auto norm = hn::Add(hn::Sqrt(rest), hn::Set(df, 1.0f));
      hn::StoreU(hn::NearestInt(norm), d, rests_ + key + half);
      most_error_ = HWY_MAX(most_error_, hn::ReduceMax(df, error));
    }
  }

  // Must be called after all panels are added.
  void Finish() { limit_ = LimitOf(threshold_, padded_, most_error_); }

  // Sets the rows that keys are compared with from now on: [first, first + n),
  // n <= kBlock, which begin a panel.
  void TakeRows(uint32_t first, uint32_t n) {
    const hn::Repartition<uint32_t, RowTag> d;
    const uint8_t* const codes = PanelAt(first);
    const size_t width = RowPanel::Width();
    n = static_cast<uint32_t>((n + width - 1) / width * width);
    taken_first_ = first;
    for (uint32_t r = 0; r < n; r += kRowsPerBlock) {
      const int32_t* const rests = rests_ + first + r;
      taken_rests_[r / kRowsPerBlock] =
          *std::max_element(rests, rests + kRowsPerBlock);
    }
    for (size_t i = 0; i < padded_ * n; i += hn::Lanes(d) * 4) {
      auto* const from = reinterpret_cast<const uint32_t*>(codes + i);
      hn::StoreU(hn::Xor(hn::LoadU(d, from), hn::Set(d, 0x80808080u)), d,
                 reinterpret_cast<uint32_t*>(taken_ + i));
    }
  }

  // Whether any key of the panel at `key` may be similar to one of rows [row,
  // row + kRowsPerBlock) other than itself.
  HWY_INLINE bool MayMeet(uint32_t row, uint32_t key) const {
    static_assert(kRowsPerBlock == 8);
    const hn::Repartition<int32_t, RowTag> d;
    const hn::Repartition<int8_t, RowTag> d8;
    const hn::Repartition<uint8_t, RowTag> du8;
    const size_t lanes = hn::Lanes(d);
    const size_t step = RowPanel::Width() * 4;
    const auto* rows = reinterpret_cast<const int32_t*>(
        taken_ + (PanelAt(row) - PanelAt(taken_first_)) +
        row % RowPanel::Width() * 4);
    const auto* keys = reinterpret_cast<const int8_t*>(PanelAt(key));
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
    // Unrolled, because compilers copy all sums around a loop's body.
    static_assert(kRowPad % 16 == 0);
    for (size_t e = 0; e < cut_; e += 16) {
      KV_STEP KV_STEP KV_STEP KV_STEP
    }
#define KV_MOST(r)                     \
  most_a = hn::Max(most_a, sum##r##a); \
  most_b = hn::Max(most_b, sum##r##b);
    const auto limit = hn::Set(d, limit_);
    const bool meets_self = row - key < RowPanel::Width();
    if (cut_ < padded_ && !meets_self) {
      auto most_a = sum0a, most_b = sum0b;
      KV_EACH_ROW(KV_MOST)
      const auto rest =
          hn::Set(d, taken_rests_[(row - taken_first_) / kRowsPerBlock]);
      const auto bound = [&](auto most, uint32_t k) HWY_ATTR {
        const auto others = hn::Mul(rest, hn::LoadU(d, rests_ + k));
        return hn::Add(hn::Sub(most, hn::LoadU(d, cut_offsets_ + k)), others);
      };
      const auto a = bound(most_a, key);
      const auto b = bound(most_b, key + static_cast<uint32_t>(lanes));
      if (hn::AllFalse(d, hn::Gt(hn::Max(a, b), limit))) return false;
    }
    for (size_t e = cut_; e < padded_; e += 16) {
      KV_STEP KV_STEP KV_STEP KV_STEP
    }
#undef KV_STEP
#undef KV_MULTIPLY_ADD
    if (meets_self) {
      const auto lane = hn::Iota(d, static_cast<int32_t>(key - row));
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
    KV_EACH_ROW(KV_MOST)
#undef KV_MOST
#undef KV_EACH_ROW
    const auto above_a = hn::Sub(most_a, hn::LoadU(d, offsets_ + key));
    const auto above_b = hn::Sub(most_b, hn::LoadU(d, offsets_ + key + lanes));
    return !hn::AllFalse(d, hn::Gt(hn::Max(above_a, above_b), limit));
  }

 private:
  // Returns codes c; adds the squares of 127 x - c to errors and those of c to
  // squares.
  static HWY_INLINE hn::Vec<hn::Repartition<int32_t, RowTag>> CodeOf(
      const float* from, hn::Vec<RowTag>& errors, hn::Vec<RowTag>& squares) {
    const RowTag d;
    const auto x = hn::Mul(hn::LoadU(d, from), hn::Set(d, 127.0f));
    const auto code = hn::NearestInt(x);
    const auto c = hn::ConvertTo(d, code);
    const auto error = hn::Sub(x, c);
    squares = hn::MulAdd(c, c, squares);
    errors = hn::MulAdd(error, error, errors);
    return code;
  }

  uint8_t* PanelAt(uint32_t key) const {
    return codes_ + key / RowPanel::Width() * RowPanel::Width() * padded_;
  }
#else
  void Add(const float*, uint32_t) {}
  void Finish() {}
  void TakeRows(uint32_t, uint32_t) {}
  bool MayMeet(uint32_t, uint32_t) const { return true; }

 private:
#endif
  // With codes c = 127 u - e and d = 127 v - f, where |e|^2 and |f|^2 <=
  // most_error, a product u v differs from c d / 127^2 by at most 2 E + E^2, E
  // = |e| / 127, because |u| <= 1.
  static int32_t LimitOf(float threshold, size_t padded, float most_error) {
    const double error = std::sqrt(double{most_error}) / 127 * 1.001 + 1e-5;
    const double rounding = 1e-5 + 2e-7 * static_cast<double>(padded);
    const double least = threshold - 2.001 * error - error * error - rounding;
    return static_cast<int32_t>(std::floor(least * 127 * 127)) - 1;
  }
  static constexpr size_t Rounded(size_t n_tokens) {
    return (n_tokens + 2 * kRowPad - 1) / (2 * kRowPad) * (2 * kRowPad);
  }

  // Without codes some of these are unused.
  const size_t padded_;
  // The product of norms bounds the products from this element on. Usually that
  // leaves no key near the threshold.
  [[maybe_unused]] const size_t cut_;
  [[maybe_unused]] const float threshold_;
  // The largest error of a direction: its sum of squares.
  [[maybe_unused]] float most_error_ = 0;
  // Products of codes above this may be similar.
  [[maybe_unused]] int32_t limit_ = 0;
  int32_t* const offsets_;      // [n_tokens]: excess of products
  int32_t* const cut_offsets_;  // [n_tokens]: excess before the cut
  // [n_tokens]: upper bound of the codes' norm after the cut
  int32_t* const rests_;
  uint8_t* const codes_;
  // The rows that keys are compared with, [kBlock / width, padded / 4, width,
  // 4], 128 added to each code. Then the highest of `rests` for every few rows,
  // and the first row.
  uint8_t* const taken_;
  [[maybe_unused]] int32_t taken_rests_[kBlock / kRowsPerBlock] = {};
  [[maybe_unused]] uint32_t taken_first_ = 0;
};

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
