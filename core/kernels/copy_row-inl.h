// Copying rows, per target.
#if defined(KVEVICT_CORE_KERNELS_COPY_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_COPY_ROW_INL_H_
#undef KVEVICT_CORE_KERNELS_COPY_ROW_INL_H_
#else
#define KVEVICT_CORE_KERNELS_COPY_ROW_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr uint32_t kCacheLine = 64;

// The number of rows to prefetch ahead, so that a scattered row has arrived
// from memory when it is used.
HWY_INLINE uint32_t RowsAhead(uint32_t row_bytes) {
  constexpr uint32_t kPrefetchBytes = 4096;
  return std::max(1u, kPrefetchBytes / std::max(row_bytes, kCacheLine));
}

// The cache belongs to the caller and is writable. Kernels that only read see
// it as const.
HWY_INLINE uint8_t* Writable(const uint8_t* p) {
  return const_cast<uint8_t*>(p);
}

// Prefetches to the second-level cache: many more lines can be in flight there
// than to the first (1.3 times as fast on Zen 4). For rows that would fill it,
// only the beginning is prefetched; while that is read the hardware fetches the
// rest.
HWY_INLINE void PrefetchRow(const uint8_t* row, uint32_t n_bytes) {
  constexpr uint32_t kMostBytes = 256 * 1024;
  const uint32_t end = std::min(n_bytes, kMostBytes);
  for (uint32_t b = 0; b < end; b += kCacheLine) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
    __builtin_prefetch(row + b, /*rw=*/0, /*locality=*/2);
#else
    hwy::Prefetch(row + b);
#endif
  }
}

// Copies n bytes that do not overlap. The last vector may overlap the one
// before.
HWY_INLINE void CopyRow(uint8_t* to, const uint8_t* from, size_t n) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  if (HWY_UNLIKELY(n < lanes)) {
    std::memcpy(to, from, n);
    return;
  }
  size_t b = 0;
  for (; b + 2 * lanes <= n; b += 2 * lanes) {
    const auto v0 = hn::LoadU(d, from + b);
    const auto v1 = hn::LoadU(d, from + b + lanes);
    hn::StoreU(v0, d, to + b);
    hn::StoreU(v1, d, to + b + lanes);
  }
  if (b + lanes <= n) {
    hn::StoreU(hn::LoadU(d, from + b), d, to + b);
    b += lanes;
  }
  if (b < n) hn::StoreU(hn::LoadU(d, from + n - lanes), d, to + n - lanes);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
