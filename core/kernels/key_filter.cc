#include "core/kernels/key_filter.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/key_filter.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

template <class Rows>
void ProductsOf(const KeyFilter& args) {
  const size_t n_padded = PaddedRow(args.head_dim);
  float* copies = args.scratch;
  for (uint32_t head = 0; head < args.heads.n_heads; ++head) {
    const float* const filter = args.filter + head * args.filter_stride;
    std::fill(std::copy_n(filter, args.head_dim, copies), copies + n_padded,
              0.0f);
    copies += n_padded;
  }
  RowGroups<Rows> keys(args.keys, args.first_token,
                       args.first_token + args.n_tokens, args.head_dim, copies,
                       nullptr, args.heads);
  while (keys.Next()) {
    float products[kRowsAtOnce];
    DotProducts<typename Rows::Decode>(
        keys.rows, args.scratch + keys.head() * n_padded, n_padded, products);
    float* const out = args.out + keys.head() * args.heads.out_stride +
                       keys.first() - args.first_token;
    for (uint32_t r = 0; r < keys.size(); ++r) out[r] = -products[r];
  }
}

void FilterKeysOf(const KeyFilter& args) {
  WithWholeRows(args.keys, args.head_dim,
                [&](auto rows) HWY_ATTR { ProductsOf<decltype(rows)>(args); });
}

size_t FilterScratchFloats(uint32_t n_heads, uint32_t head_dim) {
  return (size_t{n_heads} + kRowsAtOnce) * PaddedRow(head_dim);
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(FilterKeysOf);

size_t KeyFilterScratchFloats(uint32_t n_heads, uint32_t head_dim) {
  return HWY_STATIC_DISPATCH(FilterScratchFloats)(n_heads, head_dim);
}

void FilterKeys(SimdTarget simd, const KeyFilter& args) {
  KV_DISPATCH(simd, FilterKeysOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
