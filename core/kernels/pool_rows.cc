#include "core/kernels/pool_rows.h"

#include <algorithm>

#include "core/kernels/raise_to_mean.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/pool_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/reduce_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <bool kIsMax>
void AddScaled(const float* row, size_t n, float factor, bool adds,
               float* out) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, factor);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const size_t lanes = std::min(hn::Lanes(d), n - i);
    auto v = hn::Mul(hn::LoadN(d, row + i, lanes), scale);
    if (adds) v = Combine<kIsMax>(hn::LoadN(d, out + i, lanes), v);
    hn::StoreN(v, d, out + i, lanes);
  }
}

void AddRowTo(const float* row, size_t n, float factor, bool adds, bool is_max,
              float* out) {
  if (is_max) {
    AddScaled<true>(row, n, factor, adds, out);
  } else {
    AddScaled<false>(row, n, factor, adds, out);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(AddRowTo);

void AddRow(SimdTarget simd, const float* row, size_t n, float factor,
            bool adds, bool is_max, float* out) {
  KV_DISPATCH(simd, AddRowTo)(row, n, factor, adds, is_max, out);
}

void PoolAndReduceRows(SimdTarget simd, const RowPooling& args) {
  const bool pools = args.pool.kind != PoolKind::kNone && args.pool.width > 1;
  const bool keeps_mass = pools && args.edge == PoolEdge::kMass;
  const PoolEdge edge = keeps_mass ? PoolEdge::kPad : args.edge;
  for (size_t r = 0; r < args.n_rows; ++r) {
    const float* row = args.rows + r * args.row_stride;
    float factor = args.reduce == Reduce::kMean
                       ? 1.0f / static_cast<float>(args.n_rows)
                       : 1.0f;
    if (keeps_mass) {
      factor *= SumScores(simd, row, args.n);
    }
    if (pools) {
      Pool1d(simd, row, args.n, args.pool.width, args.pool.kind, edge,
             args.scratch);
      row = args.scratch;
    }
    if (keeps_mass) {
      const float sum = SumScores(simd, row, args.n);
      factor = sum == 0.0f ? 1.0f : factor / sum;
    }
    AddRow(simd, row, args.n, factor, r > 0, args.reduce == Reduce::kMax,
           args.out);
  }
}

}  // namespace kvevict
#endif  // HWY_ONCE
