#include "core/kernels/block_means.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/block_means.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Each lane has a block of its own, since within a block every addition waits
// for the one before.
void Average(const float* scores, size_t n, size_t block, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto places =
      hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(block)));
  const auto full = hn::Set(d, static_cast<float>(block));
  HWY_ALIGN float means[hn::MaxLanes(d)];
  const size_t n_full = n / block;
  for (size_t b = 0; b < n_full; b += lanes) {
    const size_t n_now = std::min(lanes, n_full - b);
    const float* const from = scores + b * block;
    auto sum = hn::GatherIndexN(d, from, places, n_now);
    for (size_t j = 1; j < block; ++j) {
      sum = hn::Add(sum, hn::GatherIndexN(d, from + j, places, n_now));
    }
    hn::Store(hn::Div(sum, full), d, means);
    for (size_t i = 0; i < n_now; ++i) {
      std::fill_n(out + (b + i) * block, block, means[i]);
    }
  }
  const size_t begin = n_full * block;
  if (begin == n) return;
  float sum = scores[begin];
  for (size_t j = begin + 1; j < n; ++j) sum += scores[j];
  std::fill(out + begin, out + n, sum / static_cast<float>(n - begin));
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(Average);

void AverageBlocks(SimdTarget simd, const float* scores, size_t n,
                   uint32_t block, float* out) {
  KV_DISPATCH(simd, Average)(scores, n, block, out);
}

}  // namespace kvevict
#endif  // HWY_ONCE
