#include "core/kernels/regroup.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/regroup.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/quantize-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Elements processed at once: for as many rows as a group may have they fit in
// the second-level cache.
inline constexpr size_t kPanel = 64;

// Some elements of a group's rows, and how they are encoded.
class Panel {
 public:
  explicit Panel(const RowSource& to)
      : to_(to),
        lowest_(static_cast<float>(InfoOf(to.dtype).codes.lowest)),
        highest_(static_cast<float>(InfoOf(to.dtype).codes.highest)) {}

  void Read(const RowSource& rows, uint32_t r, size_t first, size_t n,
            uint32_t into) {
    LoadRow(rows, r, first, n, rows_[into]);
  }

  // Encodes n_rows rows that were read, from row `row` of the group on.
  void Write(uint32_t row, uint32_t n_rows, size_t first, size_t n) {
    FindRanges(n_rows, n);
    for (size_t e = 0; e < n; ++e) StoreNumbers(row, first, e);
    for (uint32_t i = 0; i < n_rows; ++i) {
      Encode(rows_[i], n);
      StoreCodes(const_cast<uint8_t*>(to_.Row(row + i)), first, n);
    }
  }

 private:
  void FindRanges(uint32_t n_rows, size_t n) {
    const RowTag df;
    const auto zero = hn::Zero(df);
    for (size_t e = 0; e < n; e += hn::Lanes(df)) {
      auto min = hn::Load(df, rows_[0] + e), max = min;
      auto poison = hn::Mul(min, zero);
      for (uint32_t i = 1; i < n_rows; ++i) {
        const auto v = hn::Load(df, rows_[i] + e);
        min = hn::Min(min, v);
        max = hn::Max(max, v);
        poison = hn::MulAdd(v, zero, poison);
      }
      hn::Store(min, df, minimum_ + e);
      hn::Store(max, df, scale_ + e);
      hn::Store(poison, df, poison_ + e);
    }
  }

  // Stores the scale and minimum of an element, whose range is in their place.
  void StoreNumbers(uint32_t row, size_t first, size_t e) {
    const RowRange range{minimum_[e], scale_[e], poison_[e]};
    const ToInteger by = NumbersOf(range, to_, lowest_, highest_);
    const auto store = [&](const RowNumbers& numbers, float number) HWY_ATTR {
      StoreNumber(number, numbers.dtype,
                  const_cast<uint8_t*>(to_.Number(numbers, row)) +
                      (first + e) * ElementBytes(numbers.dtype));
    };
    const bool has_steps = by.scale > 0.0f;
    store(to_.scale, by.scale);
    if (to_.minimum.base != nullptr) {
      store(to_.minimum, std::isnan(by.scale) ? 0.0f : by.minimum);
    }
    // If the scale is 0 all codes are 0, whatever is in the rows.
    scale_[e] = has_steps ? by.scale : 1.0f;
    minimum_[e] = by.minimum;
    low_[e] = has_steps ? by.lowest : 0.0f;
    high_[e] = has_steps ? by.highest : 0.0f;
  }

  void Encode(const float* HWY_RESTRICT from, size_t n) {
    const RowTag df;
    const hn::RebindToUnsigned<RowTag> du;
    const hn::Rebind<uint8_t, RowTag> du8;
    for (size_t e = 0; e < n; e += hn::Lanes(df)) {
      const auto q =
          hn::Div(hn::Sub(hn::Load(df, from + e), hn::Load(df, minimum_ + e)),
                  hn::Load(df, scale_ + e));
      const auto number = hn::IfThenZeroElse(hn::IsNaN(q), q);
      const auto code = hn::NearestInt(hn::Min(
          hn::Max(number, hn::Load(df, low_ + e)), hn::Load(df, high_ + e)));
      hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, code)), du8, codes_ + e);
    }
  }

  void StoreCodes(uint8_t* row, size_t first, size_t n) const {
    switch (InfoOf(to_.dtype).packing) {
      case Packing::kPairs:
        return PackPairs(codes_, n / 2, row + first / 2);
      case Packing::kHalves:
        for (size_t e = 0; e < n; ++e) StoreHalf(row, first + e, codes_[e]);
        return;
      default:
        if (to_.IsPacked(1)) {
          std::copy_n(codes_, n, row + first);
        } else {
          ScatterBytes(codes_, to_, row, first, n);
        }
    }
  }

  void StoreHalf(uint8_t* row, size_t e, uint8_t code) const {
    const size_t half = to_.n_elements / 2;
    uint8_t& both = row[e % half];
    both = static_cast<uint8_t>(e < half ? (both & 0xF0) | code
                                         : (both & 0x0F) | code << 4);
  }

  const RowSource& to_;
  const float lowest_, highest_;
  HWY_ALIGN float rows_[kMostGroupRows][kPanel];
  HWY_ALIGN float minimum_[kPanel], scale_[kPanel], poison_[kPanel];
  HWY_ALIGN float low_[kPanel] = {}, high_[kPanel] = {};
  uint8_t codes_[kPanel];
};

void RegroupRowsOf(const RegroupRowsArgs& a) {
  Panel panel(a.to);
  const uint32_t group = a.to.scale.group_rows;
  const size_t dim = a.to.n_elements;
  for (uint32_t row = a.begin; row < a.end;) {
    const uint32_t first = row - row % group;
    const uint32_t end = std::min(first + group, a.end);
    if (a.in_place &&
        static_cast<uint32_t>(a.keep[end - 1 - a.first_row]) == end - 1) {
      row = end;  // all rows stay in place
      continue;
    }
    for (size_t e = 0; e < dim; e += kPanel) {
      const size_t n = std::min(kPanel, dim - e);
      for (uint32_t r = first; r < row; ++r) {
        panel.Read(a.to, r, e, n, r - first);
      }
      for (uint32_t r = row; r < end; ++r) {
        const uint32_t i = r - a.first_row;
        panel.Read(a.from,
                   a.keep == nullptr ? i : static_cast<uint32_t>(a.keep[i]), e,
                   n, r - first);
      }
      panel.Write(first, end - first, e, n);
    }
    row = end;
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(RegroupRowsOf);

void RegroupRows(SimdTarget simd, const RegroupRowsArgs& args) {
  KV_DISPATCH(simd, RegroupRowsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
