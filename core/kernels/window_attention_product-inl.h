// The matrix product of one block of queries and one panel of keys.
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

// to[r * to_stride + key] = sum over d of queries[d, r] * panel[d, key], added
// up in ascending order of d on every target. Per step two loads and
// kRowsPerBlock broadcasts feed twice as many multiply-adds, which are enough
// to hide their latency.
HWY_INLINE void MultiplyBlock(const float* HWY_RESTRICT queries,
                              const float* HWY_RESTRICT panel, size_t dim,
                              float* HWY_RESTRICT to, size_t to_stride) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
#define KV_ZERO(r) auto sum##r##a = hn::Zero(d), sum##r##b = sum##r##a;
  KV_EACH_ROW(KV_ZERO)
#undef KV_ZERO
  for (size_t i = 0; i < dim; ++i) {
    const auto a = hn::LoadU(d, panel);
    const auto b = hn::LoadU(d, panel + lanes);
#define KV_MULTIPLY_ADD(r)                   \
  {                                          \
    const auto q = hn::Set(d, queries[r]);   \
    sum##r##a = hn::MulAdd(q, a, sum##r##a); \
    sum##r##b = hn::MulAdd(q, b, sum##r##b); \
  }
    KV_EACH_ROW(KV_MULTIPLY_ADD)
#undef KV_MULTIPLY_ADD
    panel += 2 * lanes;
    queries += kRowsPerBlock;
  }
#define KV_STORE(r)                             \
  hn::StoreU(sum##r##a, d, to + (r)*to_stride); \
  hn::StoreU(sum##r##b, d, to + (r)*to_stride + lanes);
  KV_EACH_ROW(KV_STORE)
#undef KV_STORE
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#undef KV_EACH_ROW

#endif  // per-target include guard
