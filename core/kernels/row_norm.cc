#include "core/kernels/row_norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/row_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Squares' sum -> norm.
HWY_INLINE void Finish(const RowNorms& args, float sum, uint32_t row) {
  const float norm = std::sqrt(sum);
  args.out[row] = args.negated ? -norm : norm;
}

// Rows whose whole groups of kRowPad elements lie packed.
template <class Decode>
void NormsOfWholeRows(const RowNorms& args) {
  for (uint32_t r = 0; r < args.n_rows; r += kRowsAtOnce) {
    RowGroup rows;
    for (uint32_t i = 0; i < kRowsAtOnce; ++i) {
      rows[i] =
          args.rows.Row(args.first_row + std::min(r + i, args.n_rows - 1));
    }
    float sums[kRowsAtOnce];
    SumsOfSquares<Decode>(rows, args.head_dim, sums);
    for (uint32_t i = 0; i < kRowsAtOnce && r + i < args.n_rows; ++i) {
      Finish(args, sums[i], r + i);
    }
  }
}

// Any rows, a group of kRowPad elements after the other; the same sums.
template <class Decode>
void NormsOfGroups(const RowNorms& args) {
  const RowTag d;
  const size_t n = args.head_dim;
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    const uint8_t* const row = args.rows.Row(args.first_row + r);
    float sums[kRowPad] = {};
    for (size_t i = 0; i < n; i += kRowPad) {
      float group[kRowPad];
      LoadRowOf<Decode>(
          row + static_cast<int64_t>(i) * args.rows.element_stride,
          args.rows.element_stride, std::min(n - i, kRowPad), group);
      for (size_t j = 0; j < kRowPad; j += hn::Lanes(d)) {
        const auto v = hn::LoadU(d, group + j);
        hn::StoreU(hn::MulAdd(v, v, hn::LoadU(d, sums + j)), d, sums + j);
      }
    }
    Finish(args, AddUp(sums), r);
  }
}

template <class Decode>
void NormsOf(const RowNorms& args) {
  if (args.head_dim % kRowPad == 0 &&
      args.rows.element_stride == int64_t{sizeof(typename Decode::Bits)}) {
    NormsOfWholeRows<Decode>(args);
  } else {
    NormsOfGroups<Decode>(args);
  }
}

void RowNormsOf(const RowNorms& args) {
  WithDecoder(args.rows.dtype,
              [&](auto decoder) HWY_ATTR { NormsOf<decltype(decoder)>(args); });
}

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
