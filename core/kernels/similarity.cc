#include "core/kernels/similarity.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/similarity.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/directions-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

constexpr float kInside = 0x1p-23f;
constexpr float kUnits = 0x1p24f;
// An i32 holds the sum of two entries of each of so many panels.
constexpr uint32_t kPanelsAtOnce = 32;

// ---- A worker's memory ----

struct Scratch {
  float* scales;  // [n_tokens]
  float* means;   // [n_tokens]: of the rows of `others`, contiguous
  float* sum;     // [padded]: sum of all directions
  float* piece;   // [padded]
  float* staged;  // a panel's rows
  float* panel;   // [padded, 2 * lanes]: packed keys
  float* block;   // [kBlock / kRowsPerBlock, head_dim, kRowsPerBlock]

  Scratch(const Similarity& args, uint8_t* memory) {
    const size_t padded = PaddedRow(args.head_dim);
    scales = reinterpret_cast<float*>(memory);
    means = scales + args.n_tokens;
    sum = means + args.n_tokens;
    piece = sum + padded;
    staged = piece + padded;
    panel = staged + RowPanel::StagedFloats(args.head_dim);
    block = panel + RowPanel::PanelFloats(args.head_dim);
  }
};

constexpr size_t ScratchBytes(size_t n_tokens, size_t dim) {
  return sizeof(float) *
         (2 * n_tokens + 2 * PaddedRow(dim) + RowPanel::StagedFloats(dim) +
          RowPanel::PanelFloats(dim) + BlockFloats(dim));
}

// ---- The rows of the other blocks ----

class Others {
 public:
  Others(const Similarity& args, const Scratch& scratch)
      : args_(args),
        scratch_(scratch),
        directions_{args.keys, args.first, args.n_tokens, args.head_dim,
                    kInside,   0.0f,       scratch.scales},
        panels_(directions_, scratch.staged, scratch.panel),
        n_rows_(args.n_others * args.block) {
    FindDirections(directions_, panels_, scratch.sum, scratch.piece);
  }

  // Finds the mean of each row over all keys except itself.
  void FindMeans() const {
    const RowTag d;
    const auto n = static_cast<float>(args_.n_tokens);
    float dots[2 * kRowPad] = {}, squares[2 * kRowPad] = {};
    for (uint32_t t = 0; t < n_rows_; t += RowPanel::Width()) {
      Pack(t);
      panels_.SumOver(
          [&](size_t e, auto v, auto sum) HWY_ATTR {
            return hn::MulAdd(v, hn::Set(d, scratch_.sum[e]), sum);
          },
          dots);
      panels_.SquaresOf(squares);
      for (uint32_t i = t; i < std::min(n_rows_, t + RowPanel::Width()); ++i) {
        scratch_.means[i] = (dots[i - t] - squares[i - t]) / n;
      }
    }
  }

  void SumRows() const {
    std::fill_n(args_.sums, args_.n_others, 0);
    for (uint32_t first = 0; first < n_rows_; first += kBlock) {
      SumBlock(first, std::min(kBlock, n_rows_ - first));
    }
  }

 private:
  HWY_INLINE void Load(uint32_t row, float* to) const {
    panels_.Load(
        args_.others[row / args_.block] * args_.block + row % args_.block, true,
        to);
  }
  HWY_INLINE void Pack(uint32_t first) const {
    panels_.RowPanel::Pack(std::min(RowPanel::Width(), n_rows_ - first),
                           [&](uint32_t i, float* row)
                               HWY_ATTR { Load(first + i, row); });
  }

  // Sums rows [first, first + n), n <= kBlock, over their own keys and all later
  // ones, and later rows over these keys: a cosine is the same both ways.
  void SumBlock(uint32_t first, uint32_t n) const {
    const uint32_t n_groups = PackBlock(
        n, args_.head_dim,
        [&](uint32_t r, float* row) HWY_ATTR { Load(first + r, row); },
        scratch_.staged, scratch_.block);
    HWY_ALIGN int32_t sums[kBlock * kRowPad];
    uint32_t n_panels = 0;
    std::fill_n(sums, kBlock * kRowPad, 0);
    const uint32_t width = RowPanel::Width();
    for (uint32_t key = first; key < n_rows_; key += width) {
      const bool is_mine = key < first + kBlock;
      int64_t of_keys[2 * kRowPad] = {};
      Pack(key);
      for (uint32_t g = 0; g < n_groups; ++g) {
        HWY_ALIGN float cosines[kRowsPerBlock * 2 * kRowPad];
        const uint32_t row = g * kRowsPerBlock;
        MultiplyBlock(scratch_.block + size_t{row} * args_.head_dim,
                      scratch_.panel, args_.head_dim, cosines, width);
        if (is_mine) ClearOwn(first + row, key, cosines);
        SumOverKeys(first + row, cosines, sums + row * kRowPad);
        if (!is_mine) SumOverRows(key, cosines, of_keys);
      }
      for (uint32_t i = 0; i < std::min(width, n_rows_ - key); ++i) {
        args_.sums[(key + i) / args_.block] += of_keys[i];
      }
      if (++n_panels < kPanelsAtOnce && key + width < n_rows_) {
        continue;
      }
      for (uint32_t r = 0; r < n; ++r) {
        int64_t& sum = args_.sums[(first + r) / args_.block];
        for (size_t i = 0; i < kRowPad; ++i) sum += sums[r * kRowPad + i];
      }
      n_panels = 0;
      std::fill_n(sums, kBlock * kRowPad, 0);
    }
  }

  // Leaves out the products of a group's rows, from `row` on, with themselves.
  static void ClearOwn(uint32_t row, uint32_t key, float* cosines) {
    const uint32_t width = RowPanel::Width();
    for (uint32_t r = 0; r < kRowsPerBlock; ++r) {
      const uint32_t self = row + r;
      if (self >= key && self - key < width) {
        cosines[r * width + self - key] = 0.0f;
      }
    }
  }

  // Cosines in units of 2^-24; 0 if they are below the mean.
  template <class V>
  static HWY_INLINE auto Counted(const float* cosines, V mean) {
    const RowTag d;
    const auto cosine = hn::LoadU(d, cosines);
    const auto kept = hn::IfThenElseZero(hn::Ge(cosine, mean), cosine);
    return hn::ConvertTo(hn::RebindToSigned<RowTag>(),
                         hn::Mul(kept, hn::Set(d, kUnits)));
  }

  // Adds what counts of a group's products with a panel, for its rows. Rows past
  // the last one, and keys, have some mean, and no products.
  HWY_INLINE void SumOverKeys(uint32_t row, const float* cosines,
                              int32_t* sums) const {
    const hn::RebindToSigned<RowTag> di;
    const uint32_t width = RowPanel::Width();
    for (uint32_t r = 0; r < kRowsPerBlock; ++r) {
      const auto mean = hn::Set(RowTag(), scratch_.means[row + r]);
      int32_t* const to = sums + r * kRowPad;
      auto sum = hn::LoadU(di, to);
      for (size_t i = 0; i < width; i += hn::Lanes(di)) {
        sum = hn::Add(sum, Counted(cosines + r * width + i, mean));
      }
      hn::StoreU(sum, di, to);
    }
  }

  // The same for the panel's keys.
  HWY_INLINE void SumOverRows(uint32_t key, const float* cosines,
                              int64_t* sums) const {
    const hn::RebindToSigned<RowTag> di;
    const uint32_t width = RowPanel::Width();
    HWY_ALIGN int32_t of_group[2 * kRowPad];
    for (size_t i = 0; i < width; i += hn::Lanes(di)) {
      const auto mean = hn::LoadU(RowTag(), scratch_.means + key + i);
      auto sum = hn::Zero(di);
      for (uint32_t r = 0; r < kRowsPerBlock; ++r) {
        sum = hn::Add(sum, Counted(cosines + r * width + i, mean));
      }
      hn::StoreU(sum, di, of_group + i);
    }
    for (uint32_t i = 0; i < width; ++i) sums[i] += of_group[i];
  }

  const Similarity& args_;
  const Scratch& scratch_;
  const Directions directions_;
  const DirectionPanels panels_;
  const uint32_t n_rows_;
};

void Sum(const Similarity& args) {
  const Scratch scratch(args, args.scratch);
  const Others others(args, scratch);
  others.FindMeans();
  others.SumRows();
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(Sum);

size_t SimilarityScratchBytes(uint32_t n_tokens, uint32_t head_dim) {
  return HWY_STATIC_DISPATCH(ScratchBytes)(n_tokens, head_dim);
}

void SumSimilarity(SimdTarget simd, const Similarity& args) {
  KV_DISPATCH(simd, Sum)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
