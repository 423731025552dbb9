// Rows of floats combined into one.
#if defined(KVEVICT_CORE_KERNELS_REDUCE_ROWS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_REDUCE_ROWS_INL_H_
#undef KVEVICT_CORE_KERNELS_REDUCE_ROWS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_REDUCE_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The larger one, or NaN if either is: the same on every target.
template <class V>
HWY_INLINE V MaxNan(V a, V b) {
  const V larger = hn::IfThenElse(hn::Gt(a, b), a, b);  // b if b is NaN
  return hn::IfThenElse(hn::IsNaN(a), a, larger);
}

template <bool kIsMax, class V>
HWY_INLINE V Combine(V a, V b) {
  if constexpr (kIsMax) return MaxNan(a, b);
  return hn::Add(a, b);
}

// out[i], i in [0, n) = the terms rows[r * row_stride + i], combined in order
// of r, and times scale if they are added. With goes_on, the present out[i] is
// the first term.
template <bool kIsMax>
HWY_INLINE void ReduceRowsTo(const float* rows, size_t n_rows,
                             size_t row_stride, size_t n, float scale,
                             bool goes_on, float* out) {
  const hn::ScalableTag<float> d;
  const auto vscale = hn::Set(d, scale);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t lanes = std::min(hn::Lanes(d), n - i);
    auto sum = hn::LoadN(d, (goes_on ? out : rows) + i, lanes);
    for (size_t r = goes_on ? 0 : 1; r < n_rows; ++r) {
      sum =
          Combine<kIsMax>(sum, hn::LoadN(d, rows + r * row_stride + i, lanes));
    }
    hn::StoreN(kIsMax ? sum : hn::Mul(sum, vscale), d, out + i, lanes);
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
