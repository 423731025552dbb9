#include "core/kernels/rotate_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/rotate_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "core/dtypes/store-inl.h"
#include "core/kernels/turn-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

static_assert(kMaxPairs % kRowPad == 0);

HWY_INLINE void TurnRow(const RotateRows& args, const Rotation& rotation,
                        const RowSource& rows, uint32_t r) {
  const RowTag d;
  const uint32_t n = args.n_pairs;
  hn::VFromD<RowTag> re, im;
  HWY_ALIGN float elements[2 * kMaxPairs + kRowPad];
  if (args.is_interleaved) {
    LoadRow(rows, r, 0, 2 * n, elements);
    for (uint32_t f = 0; f < n; f += hn::Lanes(d)) {
      hn::LoadInterleaved2(d, elements + 2 * f, re, im);
      Turn(d, rotation, f, re, im);
      hn::StoreInterleaved2(re, im, d, elements + 2 * f);
    }
    StoreRow(elements, rows, r, 0, 2 * n);
  } else {
    float* const of_second = elements + kMaxPairs;
    LoadRow(rows, r, 0, n, elements);
    LoadRow(rows, r, n, n, of_second);
    for (uint32_t f = 0; f < n; f += hn::Lanes(d)) {
      re = hn::Load(d, elements + f);
      im = hn::Load(d, of_second + f);
      Turn(d, rotation, f, re, im);
      hn::Store(re, d, elements + f);
      hn::Store(im, d, of_second + f);
    }
    StoreRow(elements, rows, r, 0, n);
    StoreRow(of_second, rows, r, n, n);
  }
}

void RotateRowsOf(const RotateRows& args) {
  Rotation rotation;
  int32_t found = 0;  // the offset of `rotation`
  for (uint32_t r = 0; r < args.n_rows; ++r) {
    int32_t offset = args.offsets[r];
    if (args.from_slots) {
      offset = static_cast<int32_t>(args.first_row + r) - offset;
    }
    if (offset == 0) continue;
    if (offset != found)
      FindRotation(args.turns, args.n_pairs, offset, rotation);
    found = offset;
    for (uint32_t h = 0; h < args.n_heads; ++h) {
      TurnRow(args, rotation, args.heads[h], args.first_row + r);
    }
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(RotateRowsOf);

void RotateRowsInPlace(SimdTarget simd, const RotateRows& args) {
  KV_DISPATCH(simd, RotateRowsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
