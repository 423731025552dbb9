#include "core/kernels/row_spread.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/row_spread.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Elements of a row that are copied at once.
inline constexpr size_t kSpreadAtOnce = 16 * kRowPad;

// What is known of some elements of a row.
struct Spread {
  float least[kRowPad];
  float most[kRowPad];
  float sums[kRowPad] = {};
  float squares[kRowPad] = {};

  Spread() {
    std::fill_n(least, kRowPad, std::numeric_limits<float>::infinity());
    std::fill_n(most, kRowPad, -std::numeric_limits<float>::infinity());
  }

  // Element i of the row is in place i % kRowPad.
  void Add(const float* some, size_t n) {
    const RowTag d;
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      const size_t at = i % kRowPad;
      const size_t lanes = std::min(n - i, size_t{hn::Lanes(d)});
      const auto is_there = hn::FirstN(d, lanes);
      const auto v = hn::IfThenElseZero(is_there, hn::LoadU(d, some + i));
      const auto low = hn::LoadU(d, least + at);
      const auto high = hn::LoadU(d, most + at);
      hn::StoreU(hn::IfThenElse(hn::And(is_there, hn::Lt(v, low)), v, low), d,
                 least + at);
      hn::StoreU(hn::IfThenElse(hn::And(is_there, hn::Gt(v, high)), v, high), d,
                 most + at);
      hn::StoreU(hn::Add(hn::LoadU(d, sums + at), v), d, sums + at);
      hn::StoreU(hn::MulAdd(v, v, hn::LoadU(d, squares + at)), d, squares + at);
    }
  }

  float Range() const {
    return *std::max_element(most, most + kRowPad) -
           *std::min_element(least, least + kRowPad);
  }
  float Variance(size_t n) const {
    float sum[kRowPad];
    float square[kRowPad];
    std::copy_n(sums, kRowPad, sum);
    std::copy_n(squares, kRowPad, square);
    const float n_elements = static_cast<float>(n);
    const float mean = AddUp(sum) / n_elements;
    const float of_mean = mean * mean;
    return std::max(AddUp(square) / n_elements - of_mean, 0.0f);
  }
};

void SpreadsOf(const RowSpreads& args) {
  for (uint32_t head = 0; head < args.heads.n_heads; ++head) {
    RowSource rows = args.rows;
    rows.NextHead(head, args.heads.stride);
    for (uint32_t r = 0; r < args.n_rows; ++r) {
      Spread spread;
      for (size_t i = 0; i < args.head_dim; i += kSpreadAtOnce) {
        // Loads of whole vectors end within it.
        HWY_ALIGN float some[kSpreadAtOnce + kRowPad] = {};
        const size_t n = std::min(args.head_dim - i, kSpreadAtOnce);
        LoadRow(rows, args.first_row + r, i, n, some);
        spread.Add(some, n);
      }
      args.out[head * args.heads.out_stride + r] =
          args.is_variance ? spread.Variance(args.head_dim) : spread.Range();
    }
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(SpreadsOf);

void ComputeRowSpreads(SimdTarget simd, const RowSpreads& args) {
  KV_DISPATCH(simd, SpreadsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
