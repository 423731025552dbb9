// The matrix product of a block of rows and a panel, such as queries and keys.
#if defined(KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_
#undef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_
#else
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_PRODUCT_INL_H_
#endif

#include <cstddef>

#include "core/kernels/window_attention_pack-inl.h"
#include "hwy/highway.h"

// The accumulators need names: vectors of scalable targets cannot be in arrays.
#undef KV_EACH_ROW
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
#define KV_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define KV_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// to[r * to_stride + i] = sum over n steps d of a[r * a_row + d * a_step] * b[d
// * b_step + i], for kRowsPerBlock rows and KeysPerPanel() i. With kAdds it is
// added to the present content. Added up in ascending order of d on every
// target. Per step two loads and kRowsPerBlock broadcasts feed twice as many
// multiply-adds, which are enough to hide their latency.
template <bool kAdds>
HWY_INLINE void MultiplyRows(const float* HWY_RESTRICT a, size_t a_row,
                             size_t a_step, const float* HWY_RESTRICT b,
                             size_t b_step, size_t n, float* HWY_RESTRICT to,
                             size_t to_stride) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
#define KV_BEGIN(r)                                       \
  auto sum##r##a = hn::Zero(d), sum##r##b = sum##r##a;    \
  if constexpr (kAdds) {                                  \
    sum##r##a = hn::LoadU(d, to + (r)*to_stride);         \
    sum##r##b = hn::LoadU(d, to + (r)*to_stride + lanes); \
  }
  KV_EACH_ROW(KV_BEGIN)
#undef KV_BEGIN
  for (size_t i = 0; i < n; ++i) {
    const auto b0 = hn::LoadU(d, b);
    const auto b1 = hn::LoadU(d, b + lanes);
#define KV_MULTIPLY_ADD(r)                         \
  {                                                \
    const auto factor = hn::Set(d, a[(r)*a_row]);  \
    sum##r##a = hn::MulAdd(factor, b0, sum##r##a); \
    sum##r##b = hn::MulAdd(factor, b1, sum##r##b); \
  }
    KV_EACH_ROW(KV_MULTIPLY_ADD)
#undef KV_MULTIPLY_ADD
    b += b_step;
    a += a_step;
  }
#define KV_STORE(r)                             \
  hn::StoreU(sum##r##a, d, to + (r)*to_stride); \
  hn::StoreU(sum##r##b, d, to + (r)*to_stride + lanes);
  KV_EACH_ROW(KV_STORE)
#undef KV_STORE
}

// The same for queries [dim, kRowsPerBlock] and a panel of keys [dim,
// KeysPerPanel()].
HWY_INLINE void MultiplyBlock(const float* HWY_RESTRICT queries,
                              const float* HWY_RESTRICT panel, size_t dim,
                              float* HWY_RESTRICT to, size_t to_stride) {
  MultiplyRows<false>(queries, 1, kRowsPerBlock, panel, KeysPerPanel(), dim, to,
                      to_stride);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#undef KV_EACH_ROW

#endif  // per-target include guard
