#include "core/kernels/key_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/topk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/key_diff.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

constexpr float kLeastNorm = 1e-12f;   // least norm of a key with a direction
constexpr float kLeastCosine = 1e-8f;  // least norm that a cosine is divided by
// Tokens whose directions are added up separately: few enough that f32 loses
// little.
constexpr uint32_t kPiece = 256;

// sums += rows times their scales, with one load and store of the sums for all
// rows.
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

// Replaces a row that is missing or has no direction.
HWY_INLINE const uint8_t* Zeros(float* copy, size_t n) {
  std::fill_n(copy, n, 0.0f);
  return reinterpret_cast<const uint8_t*>(copy);
}

// Turns squares into norms, and computes the inverse of the keys' divisors.
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

// Writes the norms of a group's rows, and the scales that turn them into
// directions. It is one function for all loops of a dtype, because a copy of
// code of its size in each is not worth it.
template <class Decode>
HWY_NOINLINE void ScalesOf(const RowGroup& rows, size_t n_padded,
                           float (&norms)[kRowsAtOnce],
                           float (&scales)[kRowsAtOnce]) {
  SumsOfSquares<Decode>(rows, n_padded, norms);
  InvertNorms(norms, scales);
}

template <class Decode>
HWY_NOINLINE void DotsOf(const RowGroup& rows, const float* with,
                         size_t n_padded, float (&dots)[kRowsAtOnce]) {
  DotProducts<Decode>(rows, with, n_padded, dots);
}

// Calls visit(rows, scales, head) for one group of tokens after the other:
// [begin, end), or the entries of `list` there. Directions are the rows times
// the scales. A row without a direction is replaced by zeros. out = the norms
// of the tokens.
template <class Rows, class Args, class Visit>
HWY_INLINE void ForEachDirection(const Args& args, uint32_t begin, uint32_t end,
                                 size_t n_padded, float* copies,
                                 const Visit& visit,
                                 const uint32_t* list = nullptr,
                                 const SideBySide& heads = SideBySide()) {
  RowGroups<Rows> keys(args.keys, begin, end, args.head_dim, copies, list,
                       heads);
  while (keys.Next()) {
    float norms[kRowsAtOnce], scales[kRowsAtOnce];
    ScalesOf<typename Rows::Decode>(keys.rows, n_padded, norms, scales);
    float* const out = args.out + keys.head() * heads.out_stride;
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      if (r < keys.size()) out[keys.row(r)] = norms[r];
      if (r < keys.size() && HasDirection(norms[r])) continue;
      keys.rows[r] = Zeros(copies + r * n_padded, n_padded);
      scales[r] = 0.0f;
    }
    visit(keys.rows, scales, keys.head());
  }
}

// Adds the directions of tokens [begin, end) to the sums of heads. out = their
// norms.
template <class Rows>
void AddDirections(const KeyDiffs& args, uint32_t begin, uint32_t end,
                   size_t n_padded, float* copies, float* sums) {
  ForEachDirection<Rows>(
      args, begin, end, n_padded, copies,
      [&](const RowGroup& rows, const float(&scales)[kRowsAtOnce],
          uint32_t head) HWY_ATTR {
        AddScaled<typename Rows::Decode>(rows, scales, n_padded,
                                         sums + head * n_padded);
      },
      nullptr, args.heads);
}

// Turns sums into the direction of the mean.
void Normalize(uint32_t n_tokens, size_t n_padded, float* sums) {
  for (size_t i = 0; i < n_padded; ++i) {
    sums[i] /= static_cast<float>(n_tokens);
  }
  RowGroup rows;
  std::fill_n(rows, kRowsAtOnce, reinterpret_cast<const uint8_t*>(sums));
  float squares[kRowsAtOnce];
  DotsOf<DecodeF32>(rows, sums, n_padded, squares);
  const float norm = std::sqrt(squares[0]);
  const float divisor = std::max(norm, kLeastCosine);
  for (size_t i = 0; i < n_padded; ++i) sums[i] /= divisor;
}

// The score of a key whose product with the mean's direction is `dot`.
HWY_INLINE float ScoreOf(float dot, float norm) {
  return HasDirection(norm) ? -(dot / std::max(norm, kLeastCosine))
                            : std::numeric_limits<float>::quiet_NaN();
}

// Replaces the norms of tokens [begin, end) by their scores.
template <class Rows>
void Compare(const KeyDiffs& args, uint32_t begin, uint32_t end,
             size_t n_padded, float* copies, const float* directions) {
  RowGroups<Rows> keys(args.keys, begin, end, args.head_dim, copies, nullptr,
                       args.heads);
  while (keys.Next()) {
    float dots[kRowsAtOnce];
    DotsOf<typename Rows::Decode>(
        keys.rows, directions + keys.head() * n_padded, n_padded, dots);
    float* const out =
        args.out + keys.head() * args.heads.out_stride + keys.first();
    for (uint32_t r = 0; r < keys.size(); ++r) {
      out[r] = ScoreOf(dots[r], out[r]);  // was the norm
    }
  }
}

template <class Rows>
void DiffsOf(const KeyDiffs& args) {
  const size_t n_padded = PaddedRow(args.head_dim);
  float* const sums = args.scratch;
  const size_t n_sums = args.heads.n_heads * n_padded;
  float* const piece = sums + n_sums;
  float* const copies = piece + n_sums;
  std::fill_n(sums, n_sums, 0.0f);
  const uint32_t n_pieces = (args.n_tokens + kPiece - 1) / kPiece;
  const auto end_of = [&](uint32_t p) {
    return p + 1 == n_pieces ? args.n_tokens : (p + 1) * kPiece;
  };
  for (uint32_t p = 0; p < n_pieces; ++p) {
    std::fill_n(piece, n_sums, 0.0f);
    AddDirections<Rows>(args, p * kPiece, end_of(p), n_padded, copies, piece);
    for (size_t i = 0; i < n_sums; ++i) sums[i] += piece[i];
  }
  for (size_t i = 0; i < n_sums; i += n_padded) {
    Normalize(args.n_tokens, n_padded, sums + i);
  }
  for (uint32_t p = n_pieces; p-- > 0;) {
    Compare<Rows>(args, p * kPiece, end_of(p), n_padded, copies, sums);
  }
}

void KeyDiffsOf(const KeyDiffs& args) {
  WithWholeRows(args.keys, args.head_dim,
                [&](auto rows) HWY_ATTR { DiffsOf<decltype(rows)>(args); });
}

// ---- Block by block ----

constexpr float kUnits = 0x1p30f;  // units in a direction's length

// Scratch for the set of tokens that are present.
struct BlockScratch {
  int64_t* sums;     // [n_padded], in units
  float* direction;  // [n_padded], direction of the mean
  float* copies;     // [kRowsAtOnce, n_padded]
  uint32_t* tokens;  // [n_tokens], ascending: tokens that are present
  float* scores;     // [n_tokens], scores of these
  uint32_t* keys;    // [n_tokens], to select by
  int32_t* places;   // [n_tokens], indices of those that stay
  size_t n_bytes;

  BlockScratch(void* memory, size_t n_padded, size_t n_tokens) {
    uint8_t* next = static_cast<uint8_t*>(memory);
    const auto take = [&](auto*& part, size_t n) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(next);
      next += (n * sizeof(*part) + 63) / 64 * 64;
    };
    take(sums, n_padded);
    take(direction, n_padded);
    take(copies, kRowsAtOnce * n_padded);
    take(tokens, n_tokens);
    take(scores, n_tokens);
    take(keys, n_tokens);
    take(places, n_tokens);
    n_bytes = static_cast<size_t>(next - static_cast<uint8_t*>(memory));
  }
};

// sums += the directions of rows, or -= if they leave.
template <class Decode>
HWY_INLINE void AddUnits(const RowGroup& rows,
                         const float (&scales)[kRowsAtOnce], size_t n,
                         bool leave, int64_t* HWY_RESTRICT sums) {
  const int64_t sign = leave ? -1 : 0;
  const RowTag d;
  const hn::RebindToSigned<RowTag> di;
  for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
    const auto scale = hn::Set(d, scales[r]);
    const auto units = hn::Set(d, kUnits);
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      const auto u = hn::Mul(ElementsAt<Decode>(d, rows[r], i), scale);
      HWY_ALIGN int32_t v[kRowPad];
      hn::Store(hn::ConvertTo(di, hn::Mul(u, units)), di, v);
      for (size_t j = 0; j < hn::Lanes(d); ++j) {
        sums[i + j] += (int64_t{v[j]} ^ sign) - sign;
      }
    }
  }
}

template <class Rows>
class BlockwiseDiffs {
 public:
  BlockwiseDiffs(SimdTarget simd, const KeyDiffBlocks& args)
      : simd_(simd),
        args_(args),
        n_padded_(PaddedRow(args.head_dim)),
        s_(args.scratch, n_padded_, args.n_tokens) {}

  void Compute() {
    std::fill_n(s_.sums, n_padded_, int64_t{0});
    const uint32_t n_keep =
        std::min(std::max(args_.n_keep, uint32_t{1}), args_.n_tokens);
    Come(0, n_keep);
    if (n_keep == args_.n_tokens) {
      Compare();
      std::copy_n(s_.scores, n_, args_.out);
      return;
    }
    for (uint32_t begin = n_keep; begin < args_.n_tokens;) {
      const uint32_t end =
          begin + std::min(args_.block, args_.n_tokens - begin);
      const uint32_t n_later =
          (args_.n_tokens - end + args_.block - 1) / args_.block;
      Come(begin, end);
      Compare();
      Choose(n_keep, n_later);
      begin = end;
    }
  }

 private:
  using Decode = typename Rows::Decode;

  // Adds tokens [begin, end) to the set.
  void Come(uint32_t begin, uint32_t end) {
    AddDirections(begin, end, nullptr, false);
    for (uint32_t t = begin; t < end; ++t) s_.tokens[n_++] = t;
  }

  // sums += the directions of tokens [begin, end), or of those in a list; -= if
  // they leave.
  HWY_NOINLINE void AddDirections(uint32_t begin, uint32_t end,
                                  const uint32_t* list, bool leave) {
    ForEachDirection<Rows>(
        args_, begin, end, n_padded_, s_.copies,
        [&](const RowGroup& rows, const float(&scales)[kRowsAtOnce], uint32_t)
            HWY_ATTR {
              AddUnits<Decode>(rows, scales, n_padded_, leave, s_.sums);
            },
        list);
  }

  // Scores all tokens of the set.
  void Compare() {
    for (size_t i = 0; i < n_padded_; ++i) {
      s_.direction[i] = static_cast<float>(s_.sums[i]) * (1.0f / kUnits);
    }
    Normalize(n_, n_padded_, s_.direction);
    RowGroups<Rows> keys(args_.keys, 0, n_, args_.head_dim, s_.copies,
                         s_.tokens);
    while (keys.Next()) {
      float dots[kRowsAtOnce];
      DotsOf<Decode>(keys.rows, s_.direction, n_padded_, dots);
      for (uint32_t r = 0; r < keys.size(); ++r) {
        const uint32_t i = keys.first() + r;
        s_.scores[i] = ScoreOf(dots[r], args_.out[s_.tokens[i]]);
      }
    }
  }

  // Keeps the best tokens of the set.
  void Choose(uint32_t n_keep, uint32_t n_later) {
    ScoresToKeys(simd_, s_.scores, n_, s_.keys);
    SelectTopK(simd_, s_.keys, n_, n_keep, args_.tie, s_.places);
    // Tokens that leave overwrite keys, which have been read.
    uint32_t* const leaving = s_.keys;
    uint32_t n_leaving = 0;
    uint32_t next = 0;  // index in `places`
    for (uint32_t i = 0; i < n_; ++i) {
      const uint32_t token = s_.tokens[i];
      if (next < n_keep && s_.places[next] == static_cast<int32_t>(i)) {
        if (n_later == 0) args_.out[token] = s_.scores[i];
        s_.tokens[next++] = token;
        continue;
      }
      leaving[n_leaving++] = token;
    }
    n_ = n_keep;
    if (n_later > 0) AddDirections(0, n_leaving, leaving, true);
    for (uint32_t i = 0; i < n_leaving; ++i) {
      float& out = args_.out[leaving[i]];  // was the norm
      out = HasDirection(out) ? -2.0f - static_cast<float>(n_later)
                              : std::numeric_limits<float>::quiet_NaN();
    }
  }

  const SimdTarget simd_;
  const KeyDiffBlocks& args_;
  const size_t n_padded_;
  const BlockScratch s_;
  uint32_t n_ = 0;  // tokens of the set
};

void BlockDiffsOf(SimdTarget simd, const KeyDiffBlocks& args) {
  WithWholeRows(args.keys, args.head_dim, [&](auto rows) HWY_ATTR {
    BlockwiseDiffs<decltype(rows)>(simd, args).Compute();
  });
}

size_t BlocksBytes(uint32_t head_dim, uint32_t n_tokens) {
  return BlockScratch(nullptr, PaddedRow(head_dim), n_tokens).n_bytes;
}

size_t DiffScratchFloats(uint32_t n_heads, uint32_t head_dim) {
  return (2 * size_t{n_heads} + kRowsAtOnce) * PaddedRow(head_dim);
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(KeyDiffsOf);
HWY_EXPORT(BlockDiffsOf);

size_t KeyDiffScratchFloats(uint32_t n_heads, uint32_t head_dim) {
  return HWY_STATIC_DISPATCH(DiffScratchFloats)(n_heads, head_dim);
}

void ComputeKeyDiffs(SimdTarget simd, const KeyDiffs& args) {
  KV_DISPATCH(simd, KeyDiffsOf)(args);
}

size_t KeyDiffBlocksBytes(uint32_t head_dim, uint32_t n_tokens) {
  return HWY_STATIC_DISPATCH(BlocksBytes)(head_dim, n_tokens);
}

void ComputeKeyDiffBlocks(SimdTarget simd, const KeyDiffBlocks& args) {
  KV_DISPATCH(simd, BlockDiffsOf)(simd, args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
