#include "core/kernels/key_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/key_diff.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

constexpr float kLeastNorm = 1e-12f;   // of a key that gets a direction
constexpr float kLeastCosine = 1e-8f;  // of a norm that a cosine is divided by
// Tokens whose directions are added up apart: few enough that f32 loses little.
constexpr uint32_t kPiece = 256;

// sums += rows, each by its scale: one load and store of the sums for all of them.
template <class Decode>
HWY_INLINE void AddScaled(const RowGroup& rows,
                          const float (&scales)[kRowsAtOnce], size_t n,
                          float* HWY_RESTRICT sums) {
  static_assert(kRowsAtOnce == 4);
  const RowTag d;
  const auto s0 = hn::Set(d, scales[0]), s1 = hn::Set(d, scales[1]);
  const auto s2 = hn::Set(d, scales[2]), s3 = hn::Set(d, scales[3]);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    auto sum = hn::LoadU(d, sums + i);
    sum = hn::MulAdd(ElementsAt<Decode>(d, rows[0], i), s0, sum);
    sum = hn::MulAdd(ElementsAt<Decode>(d, rows[1], i), s1, sum);
    sum = hn::MulAdd(ElementsAt<Decode>(d, rows[2], i), s2, sum);
    sum = hn::MulAdd(ElementsAt<Decode>(d, rows[3], i), s3, sum);
    hn::StoreU(sum, d, sums + i);
  }
}

HWY_INLINE bool HasDirection(float norm) {
  return norm <= std::numeric_limits<float>::max();
}

// In place of a row that is not there or has no direction.
HWY_INLINE const uint8_t* Zeros(float* copy, size_t n) {
  std::fill_n(copy, n, 0.0f);
  return reinterpret_cast<const uint8_t*>(copy);
}

// Squares -> norms, and what their keys are divided by, inverted.
HWY_INLINE void InvertNorms(float (&norms)[kRowsAtOnce],
                            float (&scales)[kRowsAtOnce]) {
  const hn::CappedTag<float, kRowsAtOnce> d;
  for (uint32_t r = 0; r < kRowsAtOnce; r += hn::Lanes(d)) {
    const auto norm = hn::Sqrt(hn::LoadU(d, norms + r));
    const auto divisor = hn::Max(norm, hn::Set(d, kLeastNorm));
    hn::StoreU(norm, d, norms + r);
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), divisor), d, scales + r);
  }
}

// Tokens [begin, end): sums += their directions, out = their norms.
template <class Rows>
void AddDirections(const KeyDiffs& args, uint32_t begin, uint32_t end,
                   size_t n_padded, float* copies, float* sums) {
  using Decode = typename Rows::Decode;
  RowGroups<Rows> keys(args.keys, begin, end, args.head_dim, copies);
  while (keys.Next()) {
    float norms[kRowsAtOnce], scales[kRowsAtOnce];
    SumsOfSquares<Decode>(keys.rows, n_padded, norms);
    InvertNorms(norms, scales);
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      if (r < keys.size()) args.out[keys.first() + r] = norms[r];
      if (r < keys.size() && HasDirection(norms[r])) continue;
      keys.rows[r] = Zeros(copies + r * n_padded, n_padded);
      scales[r] = 0.0f;
    }
    AddScaled<Decode>(keys.rows, scales, n_padded, sums);
  }
}

// sums -> the mean's direction.
void Normalize(uint32_t n_tokens, size_t n_padded, float* sums) {
  for (size_t i = 0; i < n_padded; ++i) {
    sums[i] /= static_cast<float>(n_tokens);
  }
  RowGroup rows;
  std::fill_n(rows, kRowsAtOnce, reinterpret_cast<const uint8_t*>(sums));
  float squares[kRowsAtOnce];
  SumsOfSquares<DecodeF32>(rows, n_padded, squares);
  const float norm = std::sqrt(squares[0]);
  const float divisor = std::max(norm, kLeastCosine);
  for (size_t i = 0; i < n_padded; ++i) sums[i] /= divisor;
}

// Tokens [begin, end): their norms -> their scores.
template <class Rows>
void Compare(const KeyDiffs& args, uint32_t begin, uint32_t end,
             size_t n_padded, float* copies, const float* direction) {
  RowGroups<Rows> keys(args.keys, begin, end, args.head_dim, copies);
  while (keys.Next()) {
    float dots[kRowsAtOnce];
    DotProducts<typename Rows::Decode>(keys.rows, direction, n_padded, dots);
    for (uint32_t r = 0; r < keys.size(); ++r) {
      float& out = args.out[keys.first() + r];  // the norm so far
      out = HasDirection(out) ? -(dots[r] / std::max(out, kLeastCosine))
                              : std::numeric_limits<float>::quiet_NaN();
    }
  }
}

template <class Rows>
void DiffsOf(const KeyDiffs& args) {
  const size_t n_padded = PaddedRow(args.head_dim);
  float* const sums = args.scratch;
  float* const piece = sums + n_padded;
  float* const copies = piece + n_padded;
  std::fill_n(sums, n_padded, 0.0f);
  const uint32_t n_pieces = (args.n_tokens + kPiece - 1) / kPiece;
  const auto end_of = [&](uint32_t p) {
    return p + 1 == n_pieces ? args.n_tokens : (p + 1) * kPiece;
  };
  for (uint32_t p = 0; p < n_pieces; ++p) {
    std::fill_n(piece, n_padded, 0.0f);
    AddDirections<Rows>(args, p * kPiece, end_of(p), n_padded, copies, piece);
    for (size_t i = 0; i < n_padded; ++i) sums[i] += piece[i];
  }
  Normalize(args.n_tokens, n_padded, sums);
  for (uint32_t p = n_pieces; p-- > 0;) {
    Compare<Rows>(args, p * kPiece, end_of(p), n_padded, copies, sums);
  }
}

void KeyDiffsOf(const KeyDiffs& args) {
  WithWholeRows(args.keys, args.head_dim,
                [&](auto rows) HWY_ATTR { DiffsOf<decltype(rows)>(args); });
}

size_t DiffScratchFloats(uint32_t head_dim) {
  return (2 + kRowsAtOnce) * PaddedRow(head_dim);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(KeyDiffsOf);

size_t KeyDiffScratchFloats(uint32_t head_dim) {
  return HWY_STATIC_DISPATCH(DiffScratchFloats)(head_dim);
}

void ComputeKeyDiffs(SimdTarget simd, const KeyDiffs& args) {
  KV_DISPATCH(simd, KeyDiffsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
