#include "core/kernels/pool1d.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/pool1d.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/reduce_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// out[i], i in [0, n) = terms in[i .. i + width), combined left to right, times
// scale.
template <bool kIsMax>
void PoolInside(const float* in, size_t n, uint32_t width, float scale,
                float* out) {
  const hn::ScalableTag<float> d;
  const auto vscale = hn::Set(d, scale);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    auto sum = hn::LoadU(d, in + i);
    for (uint32_t j = 1; j < width; ++j) {
      sum = Combine<kIsMax>(sum, hn::LoadU(d, in + i + j));
    }
    hn::StoreU(kIsMax ? sum : hn::Mul(sum, vscale), d, out + i);
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  auto sum = hn::LoadN(d, in + i, rest);
  for (uint32_t j = 1; j < width; ++j) {
    sum = Combine<kIsMax>(sum, hn::LoadN(d, in + i + j, rest));
  }
  hn::StoreN(kIsMax ? sum : hn::Mul(sum, vscale), d, out + i, rest);
}

void AvgPoolInside(const float* in, size_t n, uint32_t width, float scale,
                   float* out) {
  PoolInside<false>(in, n, width, scale, out);
}

void MaxPoolInside(const float* in, size_t n, uint32_t width, float scale,
                   float* out) {
  PoolInside<true>(in, n, width, scale, out);
}

void SumRows(const float* rows, size_t n_rows, size_t row_stride, size_t n,
             float scale, float* out) {
  ReduceRowsTo<false>(rows, n_rows, row_stride, n, scale, false, out);
}

void MaxRows(const float* rows, size_t n_rows, size_t row_stride, size_t n,
             float scale, float* out) {
  ReduceRowsTo<true>(rows, n_rows, row_stride, n, scale, false, out);
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(AvgPoolInside);
HWY_EXPORT(MaxPoolInside);
HWY_EXPORT(SumRows);
HWY_EXPORT(MaxRows);

// One output whose window extends past an edge: terms [begin, end).
float PoolAtEdge(const float* in, size_t begin, size_t end, uint32_t width,
                 PoolKind pool, PoolEdge edge) {
  float result = in[begin];
  for (size_t i = begin + 1; i < end; ++i) {
    if (pool == PoolKind::kAvg) {
      result += in[i];
    } else if (!std::isnan(result) && !(in[i] <= result)) {
      result = in[i];
    }
  }
  if (pool == PoolKind::kMax) return result;
  const size_t terms = edge == PoolEdge::kPad ? width : end - begin;
  return result * (1.0f / static_cast<float>(terms));
}

}  // namespace

void Pool1d(SimdTarget simd, const float* in, size_t n, uint32_t width,
            PoolKind pool, PoolEdge edge, float* out) {
  const size_t half = width / 2;
  const size_t n_inside = n > 2 * half ? n - 2 * half : 0;
  const auto at_edges = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      out[i] = PoolAtEdge(in, i - std::min(i, half), std::min(i + half + 1, n),
                          width, pool, edge);
    }
  };
  const size_t left = std::min(half, n);
  at_edges(0, left);
  const float scale = 1.0f / static_cast<float>(width);
  if (n_inside > 0) {
    if (pool == PoolKind::kMax) {
      KV_DISPATCH(simd, MaxPoolInside)
      (in, n_inside, width, scale, out + half);
    } else {
      KV_DISPATCH(simd, AvgPoolInside)
      (in, n_inside, width, scale, out + half);
    }
  }
  at_edges(left + n_inside, n);
}

void ReduceRows(SimdTarget simd, const float* rows, size_t n_rows,
                size_t row_stride, size_t n, Reduce reduce, float* out) {
  const float scale =
      reduce == Reduce::kMean ? 1.0f / static_cast<float>(n_rows) : 1.0f;
  if (reduce == Reduce::kMax) {
    KV_DISPATCH(simd, MaxRows)(rows, n_rows, row_stride, n, scale, out);
  } else {
    KV_DISPATCH(simd, SumRows)(rows, n_rows, row_stride, n, scale, out);
  }
}

}  // namespace kvevict
#endif  // HWY_ONCE
