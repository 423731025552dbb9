// Rows of dtypes that can be scored, as f32.
#if defined(KVEVICT_CORE_DTYPES_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_LOAD_INL_H_
#undef KVEVICT_CORE_DTYPES_LOAD_INL_H_
#else
#define KVEVICT_CORE_DTYPES_LOAD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/dtypes/plain-inl.h"
#include "core/dtypes/quantized-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What stands for the decoder of any quantized dtype: rows are copied, by LoadRowOf() or
// some at a time, and never loaded from where they lie.
struct DecodeQuantized : DecodeF32 {};

template <bool kIsPlain, class Decode, class Use>
HWY_INLINE bool UsePlain(const Use& use) {
  if constexpr (kIsPlain) use(Decode());
  return kIsPlain;
}

// Calls use() with the decoder of a dtype that can be scored.
template <class Use>
HWY_INLINE void WithDecoder(DType dtype, const Use& use) {
  switch (dtype) {
#define KVEVICT_DTYPE(Name, text, id, bytes, ...)                \
  case DType::k##Name:                                           \
    if (UsePlain<(bytes > 1), struct Decode##Name>(use)) return; \
    break;
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  }
  use(DecodeQuantized());
}

// Whether Decode can load vectors from where the elements of rows lie.
template <class Decode>
HWY_INLINE bool IsPacked(const RowSource& rows) {
  if constexpr (std::is_same_v<Decode, DecodeQuantized>) return false;
  return rows.IsPacked(sizeof(typename Decode::Bits));
}

// out[0, n) = elements [first, first + n) of row r; out[n, PaddedRow(n)) = 0.
// Strides may have any sign and addresses any alignment.
template <class Decode>
HWY_INLINE void LoadRowOf(const RowSource& rows, uint32_t r, size_t first,
                          size_t n, float* HWY_RESTRICT out) {
  if constexpr (std::is_same_v<Decode, DecodeQuantized>) {
    return LoadQuantized(rows, &r, 1, first, n, 0, out);
  }
  using Bits = typename Decode::Bits;
  const uint8_t* const row = rows.Row(r);
  const RowTag df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  if (IsPacked<Decode>(rows)) {
    const uint8_t* const from = row + first * sizeof(Bits);
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(Decode::Load(df, from + i * sizeof(Bits)), df, out + i);
    }
  }
  // The end of the row, and elements that lie apart: through a packed copy, so
  // that nothing past the row is read.
  for (; i < PaddedRow(n); i += lanes) {
    Bits packed[kRowPad] = {};
    if (i < n) {
      CopyElements(rows, row, first + i, HWY_MIN(lanes, n - i), packed);
    }
    hn::StoreU(Decode::Load(df, reinterpret_cast<const uint8_t*>(packed)), df,
               out + i);
  }
}

// The same of rows whose dtype, one that can be scored, the caller need not know.
HWY_INLINE void LoadRow(const RowSource& rows, uint32_t r, size_t first,
                        size_t n, float* HWY_RESTRICT out) {
  WithDecoder(rows.dtype, [&](auto decoder) HWY_ATTR {
    LoadRowOf<decltype(decoder)>(rows, r, first, n, out);
  });
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
