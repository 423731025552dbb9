#include "core/kernels/row_norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/row_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Sum j is that of the elements j, j + kRowPad, ... of a piece; then they are
// added pairwise.
float AddUp(float (&sums)[kRowPad]) {
  for (size_t half = kRowPad / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// Of n packed elements, a multiple of kRowPad. Vectors of scalable targets cannot
// be in arrays, so the sums of up to four have names.
template <class Decode>
HWY_INLINE void AddSquares(const uint8_t* from, size_t n,
                           float (&sums)[kRowPad]) {
  using Bits = typename Decode::Bits;
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  if (lanes < kRowPad / 4) {
    for (size_t i = 0; i < n; i += lanes) {
      const auto v = Decode::Load(d, from + i * sizeof(Bits));
      float* const sum = sums + i % kRowPad;
      hn::StoreU(hn::MulAdd(v, v, hn::LoadU(d, sum)), d, sum);
    }
    return;
  }
  auto a = hn::LoadU(d, sums);
  auto b = a, c = a, e = a;
  if (lanes < kRowPad) b = hn::LoadU(d, sums + lanes);
  if (lanes < kRowPad / 2) {
    c = hn::LoadU(d, sums + 2 * lanes);
    e = hn::LoadU(d, sums + 3 * lanes);
  }
  const size_t step = lanes * sizeof(Bits);
  for (size_t i = 0; i < n; i += kRowPad) {
    const uint8_t* at = from + i * sizeof(Bits);
    auto v = Decode::Load(d, at);
    a = hn::MulAdd(v, v, a);
    if (lanes < kRowPad) {
      v = Decode::Load(d, at + step);
      b = hn::MulAdd(v, v, b);
    }
    if (lanes < kRowPad / 2) {
      v = Decode::Load(d, at + 2 * step);
      c = hn::MulAdd(v, v, c);
      v = Decode::Load(d, at + 3 * step);
      e = hn::MulAdd(v, v, e);
    }
  }
  hn::StoreU(a, d, sums);
  if (lanes < kRowPad) hn::StoreU(b, d, sums + lanes);
  if (lanes < kRowPad / 2) {
    hn::StoreU(c, d, sums + 2 * lanes);
    hn::StoreU(e, d, sums + 3 * lanes);
  }
}

template <class Decode>
void NormsOf(const RowNorms& args) {
  using Bits = typename Decode::Bits;
  const size_t n = args.head_dim;
  const bool packed = args.rows.element_stride == int64_t{sizeof(Bits)};
  const size_t n_whole = packed ? n / kRowPad * kRowPad : 0;
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    const uint8_t* row = args.rows.Row(args.first_row + r);
    float sums[kRowPad] = {};
    AddSquares<Decode>(row, n_whole, sums);
    // The end of the row, and elements that lie apart.
    for (size_t i = n_whole; i < n; i += kRowPad) {
      float piece[kRowPad];
      LoadRowOf<Decode>(
          row + static_cast<int64_t>(i) * args.rows.element_stride,
          args.rows.element_stride, std::min(n - i, kRowPad), piece);
      AddSquares<DecodeF32>(reinterpret_cast<const uint8_t*>(piece), kRowPad,
                            sums);
    }
    const float norm = std::sqrt(AddUp(sums));
    args.out[r] = args.negated ? -norm : norm;
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
