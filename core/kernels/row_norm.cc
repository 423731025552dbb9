#include "core/kernels/row_norm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/row_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Turns sums of squares into norms of `n` rows.
HWY_INLINE void Finish(float (&sums)[kRowsAtOnce], uint32_t n, bool negated,
                       float* out) {
  const hn::CappedTag<float, kRowsAtOnce> d;
  for (uint32_t r = 0; r < kRowsAtOnce; r += hn::Lanes(d)) {
    const auto norm = hn::Sqrt(hn::LoadU(d, sums + r));
    hn::StoreU(negated ? hn::Neg(norm) : norm, d, sums + r);
  }
  if (n == kRowsAtOnce) {
    std::copy_n(sums, kRowsAtOnce, out);
  } else {
    std::copy_n(sums, n, out);
  }
}

// `copies`: kRowsAtOnce rows, if Rows makes copies.
template <class Rows>
void NormsOfWholeRows(const RowNorms& args, float* copies) {
  RowGroups<Rows> groups(args.rows, args.first_row,
                         args.first_row + args.n_rows, args.head_dim, copies,
                         nullptr, args.heads);
  const size_t n = PaddedRow(args.head_dim);
  while (groups.Next()) {
    float sums[kRowsAtOnce];
    SumsOfSquares<typename Rows::Decode>(groups.rows, n, sums);
    Finish(sums, groups.size(), args.negated,
           args.out + groups.head() * args.heads.out_stride + groups.first() -
               args.first_row);
  }
}

// Elements of a row that are copied at once.
inline constexpr size_t kAtOnce = 16 * kRowPad;

// For any rows of a head, a few groups of kRowPad elements at a time, with the
// same sums.
void NormsOfGroups(const RowNorms& args, uint32_t head) {
  const RowTag d;
  const size_t n = args.head_dim;
  RowSource rows = args.rows;
  rows.NextHead(head, args.heads.stride);
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    float sums[kRowPad] = {};
    for (size_t i = 0; i < n; i += kAtOnce) {
      float some[kAtOnce];
      const size_t n_now = std::min(n - i, kAtOnce);
      LoadRow(rows, args.first_row + r, i, n_now, some);
      for (size_t j = 0; j < n_now; j += hn::Lanes(d)) {
        float* const sum = sums + j % kRowPad;
        const auto v = hn::LoadU(d, some + j);
        hn::StoreU(hn::MulAdd(v, v, hn::LoadU(d, sum)), d, sum);
      }
    }
    float sum[kRowsAtOnce] = {AddUp(sums)};
    Finish(sum, 1, args.negated, args.out + head * args.heads.out_stride + r);
  }
}

void RowNormsOf(const RowNorms& args) {
  WithWholeRows(args.rows, args.head_dim, [&](auto rows) HWY_ATTR {
    using Rows = decltype(rows);
    if constexpr (!Rows::kIsCopy) {
      NormsOfWholeRows<Rows>(args, nullptr);
    } else if (args.head_dim <= kAtOnce) {
      HWY_ALIGN float copies[kRowsAtOnce * kAtOnce];
      NormsOfWholeRows<Rows>(args, copies);
    } else {
      for (uint32_t head = 0; head < args.heads.n_heads; ++head) {
        NormsOfGroups(args, head);
      }
    }
  });
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(RowNormsOf);

void ComputeRowNorms(SimdTarget simd, const RowNorms& args) {
  KV_DISPATCH(simd, RowNormsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
