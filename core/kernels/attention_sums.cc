#include "core/kernels/attention_sums.h"

#include <algorithm>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/reduce_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// sums[i] /= counts_at(i), one vector at a time.
template <class CountsAt>
HWY_INLINE void DivideBy(const CountsAt& counts_at, size_t n, float* sums) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto counts = counts_at(i, hn::Lanes(d));
    hn::StoreU(hn::Div(hn::LoadU(d, sums + i), counts), d, sums + i);
  }
  if (i == n) return;
  const auto counts = counts_at(i, n - i);
  hn::StoreN(hn::Div(hn::LoadN(d, sums + i, n - i), counts), d, sums + i,
             n - i);
}

void DivideListed(const int32_t* positions, int32_t n_seen, int32_t most,
                  size_t n, float* sums) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto seen = hn::Set(di, n_seen);
  const auto limit = hn::Set(di, most);
  DivideBy(
      [&](size_t i, size_t lanes) HWY_ATTR {
        const auto count = hn::Sub(seen, hn::LoadN(di, positions + i, lanes));
        return hn::ConvertTo(d, hn::Min(count, limit));
      },
      n, sums);
}

// Divides the sums by `first`, `first` - 1, ..., but by `most` at most.
void DivideCounted(int32_t first, int32_t most, size_t n, float* sums) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lane = hn::Iota(di, 0);
  const auto limit = hn::Set(di, most);
  DivideBy(
      [&](size_t i, size_t) HWY_ATTR {
        const auto count =
            hn::Sub(hn::Set(di, first - static_cast<int32_t>(i)), lane);
        return hn::ConvertTo(d, hn::Min(count, limit));
      },
      n, sums);
}

// For n slots that all have sums, or of which none has.
template <bool kAdds>
HWY_INLINE void ForwardMax(const float* rows, size_t n, uint32_t width,
                           float* sums) {
  const hn::ScalableTag<float> d;
  const auto at = [&](size_t i, size_t lanes) HWY_ATTR {
    auto most = hn::LoadN(d, rows + i, lanes);
    for (uint32_t j = 1; j < width; ++j) {
      most = Combine<true>(most, hn::LoadN(d, rows + i + j, lanes));
    }
    if constexpr (kAdds) {
      most = hn::Add(hn::LoadN(d, sums + i, lanes), most);
    }
    hn::StoreN(most, d, sums + i, lanes);
  };
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) at(i, hn::Lanes(d));
  if (i < n) at(i, n - i);
}

void AddForwardMaxTo(const float* rows, size_t n, uint32_t width, size_t n_old,
                     float* sums) {
  ForwardMax<true>(rows, n_old, width, sums);
  ForwardMax<false>(rows + n_old, n - n_old, width, sums + n_old);
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(DivideListed);
HWY_EXPORT(DivideCounted);
HWY_EXPORT(AddForwardMaxTo);

}  // namespace

void DivideByQueries(SimdTarget simd, const SlotPositions& slots, uint32_t list,
                     uint32_t begin, uint32_t n, uint32_t n_seen,
                     uint32_t n_summed, float* sums) {
  const auto seen = static_cast<int32_t>(n_seen);
  const auto most = static_cast<int32_t>(n_summed);
  const uint32_t n_listed = slots.n_kept.Of(list);
  const uint32_t n_here =
      begin < n_listed ? std::min(n, n_listed - begin) : uint32_t{0};
  if (n_here > 0) {
    const int32_t* const positions =
        slots.kept + uint64_t{list} * slots.n_kept.most + begin;
    KV_DISPATCH(simd, DivideListed)(positions, seen, most, n_here, sums);
  }
  if (n_here == n) return;
  const int32_t first = seen - slots.PositionOf(list, begin + n_here);
  KV_DISPATCH(simd, DivideCounted)
  (first, most, n - n_here, sums + n_here);
}

void DivideByRows(SimdTarget simd, uint32_t n_tokens, uint32_t n_rows,
                  uint32_t begin, uint32_t n, float* sums) {
  KV_DISPATCH(simd, DivideCounted)
  (static_cast<int32_t>(n_tokens - begin), static_cast<int32_t>(n_rows), n,
   sums);
}

void AddForwardMax(SimdTarget simd, const float* rows, size_t n, uint32_t width,
                   size_t n_old, float* sums) {
  KV_DISPATCH(simd, AddForwardMaxTo)(rows, n, width, n_old, sums);
}

}  // namespace kvevict
#endif  // HWY_ONCE
