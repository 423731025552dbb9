#include "core/kernels/key_filter.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/key_filter.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

template <class Rows>
void ProductsOf(const KeyFilter& args) {
  const size_t n_padded = PaddedRow(args.head_dim);
  float* const filter = args.scratch;
  float* const copies = filter + n_padded;
  std::fill(std::copy_n(args.filter, args.head_dim, filter), copies, 0.0f);
  RowGroups<Rows> keys(args.keys, args.first_token,
                       args.first_token + args.n_tokens, args.head_dim, copies);
  float* out = args.out;
  while (keys.Next()) {
    float products[kRowsAtOnce];
    DotProducts<typename Rows::Decode>(keys.rows, filter, n_padded, products);
    for (uint32_t r = 0; r < keys.size(); ++r) *out++ = -products[r];
  }
}

void FilterKeysOf(const KeyFilter& args) {
  WithWholeRows(args.keys, args.head_dim,
                [&](auto rows) HWY_ATTR { ProductsOf<decltype(rows)>(args); });
}

size_t FilterScratchFloats(uint32_t head_dim) {
  return (1 + kRowsAtOnce) * PaddedRow(head_dim);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(FilterKeysOf);

size_t KeyFilterScratchFloats(uint32_t head_dim) {
  return HWY_STATIC_DISPATCH(FilterScratchFloats)(head_dim);
}

void FilterKeys(SimdTarget simd, const KeyFilter& args) {
  KV_DISPATCH(simd, FilterKeysOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
