// Loads rows of dtypes that can be scored, as f32.
#if defined(KVEVICT_CORE_DTYPES_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_LOAD_INL_H_
#undef KVEVICT_CORE_DTYPES_LOAD_INL_H_
#else
#define KVEVICT_CORE_DTYPES_LOAD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/dtypes/plain-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <bool kIsPlain, class Decode, class Use>
HWY_INLINE bool UsePlain(const Use& use) {
  if constexpr (kIsPlain) use(Decode());
  return kIsPlain;
}

// Calls use() with the decoder of a floating-point dtype. Returns false for
// other dtypes.
template <class Use>
HWY_INLINE bool WithDecoder(DType dtype, const Use& use) {
  switch (dtype) {
#define KVEVICT_DTYPE(Name, text, id, bytes, ...) \
  case DType::k##Name:                            \
    return UsePlain<(bytes > 1 && IsBuilt(text)), struct Decode##Name>(use);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  }
  return false;
}

// Writes elements [first, first + n) of the listed rows, of any dtype that can
// be scored. Row i goes to out + i * stride and is followed by zeros up to
// PaddedRow(n). Strides may have any sign and addresses any alignment. load.cc
// is compiled once per target, so that kernels which copy rows do not each
// contain every decoder.
void LoadRows(const RowSource& rows, const uint32_t* list, uint32_t n_rows,
              size_t first, size_t n, size_t stride, float* HWY_RESTRICT out);

// The same for one row.
HWY_INLINE void LoadRow(const RowSource& rows, uint32_t r, size_t first,
                        size_t n, float* HWY_RESTRICT out) {
  LoadRows(rows, &r, 1, first, n, 0, out);
}

// Reads rows that LoadRows() has copied.
struct DecodeCopies : DecodeF32 {};

// WebAssembly has no instruction that decodes halves, and each kernel with the
// code for it would be downloaded.
#if HWY_ARCH_WASM
inline constexpr bool kHalvesInPlace = false;
#else
inline constexpr bool kHalvesInPlace = true;
#endif

// Calls use() with the decoder that reads rows of n elements in place, in whole
// groups of kRowPad. If rows cannot be read in place it passes DecodeCopies.
template <class Use>
HWY_INLINE void WithDecoderOrCopies(const RowSource& rows, size_t n,
                                    const Use& use) {
  if (n % kRowPad == 0 && rows.IsPacked(ElementBytes(rows.dtype))) {
    if constexpr (kHalvesInPlace) {
      if (WithDecoder(rows.dtype, use)) return;
    } else if (rows.dtype == DType::kF32) {
      return use(DecodeF32());
    }
  }
  use(DecodeCopies());
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
