#include "core/kernels/requantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/requantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/dtypes/quantize-inl.h"
#include "core/kernels/copy_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

void RequantizeRowsOf(const RequantizeRowsArgs& a) {
  HWY_ALIGN float buffer[kRowPart];
  const bool is_quantized = InfoOf(a.to.dtype).is_quantized();
  const auto bytes =
      static_cast<uint32_t>(PackedBytes(a.from.dtype, a.from.n_elements));
  const uint32_t ahead = RowsAhead(bytes);
  const auto row_of = [&](uint32_t i) {
    return a.keep == nullptr ? i : static_cast<uint32_t>(a.keep[i]);
  };
  for (uint32_t i = a.begin; i < a.end; ++i) {
    if (i + ahead < a.end) PrefetchRow(a.from.Row(row_of(i + ahead)), bytes);
    const FloatRow row(a.from, row_of(i), buffer);
    if (is_quantized) {
      StoreQuantized(row, a.to, a.first_row + i);
      continue;
    }
    row.ForEachPart([&](const float* part, size_t first, size_t n) HWY_ATTR {
      StoreRow(part, a.to, a.first_row + i, first, n);
    });
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(RequantizeRowsOf);

void RequantizeRows(SimdTarget simd, const RequantizeRowsArgs& args) {
  KV_DISPATCH(simd, RequantizeRowsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
