#include "core/kernels/redundancy.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/redundancy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/kernels/directions-inl.h"
#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

constexpr float kPlus = 1e-8f;  // to a norm that a key is divided by
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = 1.44269504088896340736f;
// Softmax: terms i, i + kSums, ... are added up apart.
constexpr size_t kSums = 256;
// Of an entry in fixed point.
constexpr float kUnits = 4294967296.0f;

// ---- A worker's memory ----

struct Scratch {
  // Of what rows left out in each column, in fixed point.
  int64_t* left_out;  // [n_tokens]
  float* scales;  // [n_tokens]: of a key that makes it u, 0 if there is none
  float* sum;     // [padded]: of all u
  float* piece;   // [padded]
  float* staged;  // a panel's rows
  float* panel;   // [padded, 2 * lanes]: keys side by side
  float* block;   // [kBlock / kRowsPerBlock, head_dim, kRowsPerBlock]

  Scratch(const Redundancy& args, uint8_t* memory) {
    const size_t padded = PaddedRow(args.head_dim);
    left_out = reinterpret_cast<int64_t*>(memory);
    scales = reinterpret_cast<float*>(left_out + args.n_tokens);
    sum = scales + args.n_tokens;
    piece = sum + padded;
    staged = piece + padded;
    panel = staged + RowPanel::StagedFloats(args.head_dim);
    block = panel + RowPanel::PanelFloats(args.head_dim);
  }
};

constexpr size_t ScratchBytes(size_t n_tokens, size_t dim) {
  return n_tokens * (sizeof(int64_t) + sizeof(float)) +
         sizeof(float) * (2 * PaddedRow(dim) + RowPanel::StagedFloats(dim) +
                          RowPanel::PanelFloats(dim) + BlockFloats(dim));
}

// ---- The entry that each row leaves out ----

// What a block's rows have found: a key and its cosine.
struct Found {
  uint32_t key[kBlock];
  float cosine[kBlock];
  bool is_found[kBlock];
  uint32_t n_left[kBlock / kRowsPerBlock];  // of its rows
};

// Of a row's cosines with the panel's keys: the last that is similar, or -1.
HWY_INLINE int LastSimilar(const float* cosines, float threshold) {
  const RowTag d;
  const auto least = hn::Set(d, threshold);
  const auto a = hn::Gt(hn::LoadU(d, cosines), least);
  const auto b = hn::Gt(hn::LoadU(d, cosines + hn::Lanes(d)), least);
  if (!hn::AllFalse(d, b)) {
    return static_cast<int>(hn::Lanes(d) + hn::FindKnownLastTrue(d, b));
  }
  return hn::AllFalse(d, a) ? -1
                            : static_cast<int>(hn::FindKnownLastTrue(d, a));
}

// Rows [row, row + kRowsPerBlock) of the block at `first` against the panel's keys,
// which begin at `key`. A key that is not there has a cosine of 0.
void MeetPanel(const Redundancy& args, const Scratch& s, uint32_t first,
               uint32_t row, uint32_t key, Found* found) {
  const uint32_t width = RowPanel::Width();
  HWY_ALIGN float cosines[kRowsPerBlock * 2 * kRowPad];
  MultiplyBlock(s.block + size_t{row} * args.head_dim, s.panel, args.head_dim,
                cosines, width);
  for (uint32_t r = 0; r < kRowsPerBlock; ++r) {
    float* const mine = cosines + r * width;
    const uint32_t self = first + row + r;
    if (self >= key && self - key < width) mine[self - key] = 0.0f;
    if (found->is_found[row + r]) continue;
    int last = LastSimilar(mine, args.threshold);
    if (last < 0 && key > 0) continue;
    last = std::max(last, 0);  // no key is similar: column 0
    found->key[row + r] = key + static_cast<uint32_t>(last);
    found->cosine[row + r] = mine[last];
    found->is_found[row + r] = true;
    --found->n_left[row / kRowsPerBlock];
  }
}

void LeaveOutOfBlock(const Redundancy& args, const DirectionPanels& panels,
                     const Scratch& s, uint32_t first) {
  const uint32_t n = std::min(kBlock, args.n_tokens - first);
  const uint32_t n_groups = PackBlock(
      n, args.head_dim,
      [&](uint32_t r, float* row)
          HWY_ATTR { panels.Load(first + r, true, row); },
      s.staged, s.block);
  Found found = {};
  std::fill_n(found.n_left, n_groups, static_cast<uint32_t>(kRowsPerBlock));
  // Rows that are not there look for nothing.
  for (uint32_t r = n; r < n_groups * kRowsPerBlock; ++r) {
    found.is_found[r] = true;
    --found.n_left[n_groups - 1];
  }
  const uint32_t width = RowPanel::Width();
  bool are_left = true;
  for (uint32_t key = (args.n_tokens - 1) / width * width; are_left;
       key -= width) {
    panels.Pack(key, true);
    are_left = false;
    for (uint32_t g = 0; g < n_groups; ++g) {
      if (found.n_left[g] == 0) continue;
      MeetPanel(args, s, first, g * kRowsPerBlock, key, &found);
      are_left = are_left || found.n_left[g] > 0;
    }
  }
  for (uint32_t r = 0; r < n; ++r) {
    s.left_out[found.key[r]] += static_cast<int64_t>(found.cosine[r] * kUnits);
  }
}

// ---- Columns ----

// scales[j] of every key -> the sum of column j, NaN for one without a direction.
// Returns how many have one.
uint32_t SumColumns(const Redundancy& args, const DirectionPanels& panels,
                    const Scratch& s) {
  const RowTag d;
  uint32_t n_good = 0;
  float dots[2 * kRowPad], squares[2 * kRowPad];
  for (uint32_t t = 0; t < args.n_tokens; t += RowPanel::Width()) {
    panels.Pack(t, true);
    panels.SumOver(
        [&](size_t e, auto v, auto sum)
            HWY_ATTR { return hn::MulAdd(v, hn::Set(d, s.sum[e]), sum); },
        dots);
    panels.SquaresOf(squares);
    for (uint32_t i = t; i < std::min(args.n_tokens, t + RowPanel::Width());
         ++i) {
      const bool is_good = s.scales[i] != 0.0f;
      const float others = dots[i - t] - squares[i - t];
      s.scales[i] =
          is_good ? others - static_cast<float>(s.left_out[i]) * (1.0f / kUnits)
                  : kNan;
      n_good += is_good;
    }
  }
  return n_good;
}

// The softmax of columns / n_good, in place; NaN stays and is left out.
void Soften(float n_good, size_t n, float* columns) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const auto count = hn::Set(d, n_good);
  auto most = hn::Set(d, -kInfinity);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t n_lanes = std::min(lanes, n - i);
    const auto mean = hn::Div(hn::LoadN(d, columns + i, n_lanes), count);
    hn::StoreN(mean, d, columns + i, n_lanes);
    most = hn::IfThenElse(hn::And(hn::FirstN(d, n_lanes), hn::Gt(mean, most)),
                          mean, most);
  }
  most = hn::MaxOfLanes(d, most);
  const auto log2e = hn::Set(d, kLog2E);
  HWY_ALIGN float sums[kSums] = {};
  for (size_t i = 0; i < n; i += lanes) {
    const size_t n_lanes = std::min(lanes, n - i);
    const auto mean = hn::LoadN(d, columns + i, n_lanes);
    const auto e = Exp2(d, hn::Mul(hn::Sub(mean, most), log2e));
    hn::StoreN(e, d, columns + i, n_lanes);
    const auto added =
        hn::IfThenElseZero(hn::And(hn::FirstN(d, n_lanes), hn::Eq(e, e)), e);
    float* const sum = sums + i % kSums;
    hn::StoreU(hn::Add(hn::LoadU(d, sum), added), d, sum);
  }
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  const auto sum = hn::Set(d, sums[0]);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t n_lanes = std::min(lanes, n - i);
    hn::StoreN(hn::Div(hn::LoadN(d, columns + i, n_lanes), sum), d, columns + i,
               n_lanes);
  }
}

void Mix(const Redundancy& args, const float* redundancy) {
  const RowTag d;
  const auto a = hn::Set(d, args.score_weight), b = hn::Set(d, args.weight);
  const auto infinity = hn::Set(d, kInfinity);
  for (size_t i = 0; i < args.n_tokens; i += hn::Lanes(d)) {
    const size_t n = std::min(hn::Lanes(d), args.n_tokens - i);
    const auto score = hn::LoadN(d, args.scores + i, n);
    const auto off = hn::Mul(b, hn::LoadN(d, redundancy + i, n));
    const auto mixed = hn::MulSub(a, score, off);
    hn::StoreN(hn::IfThenElse(hn::Eq(score, infinity), score, mixed), d,
               args.scores + i, n);
  }
}

void Subtract(const Redundancy& args) {
  if (args.n_tokens == 0) return;
  const Scratch scratch(args, args.scratch);
  const Directions directions{args.keys, 0,     args.n_tokens, args.head_dim,
                              0.0f,      kPlus, scratch.scales};
  const DirectionPanels panels(directions, scratch.staged, scratch.panel);
  std::fill_n(scratch.left_out, args.n_tokens, 0);
  FindDirections(directions, panels, scratch.sum, scratch.piece,
                 scratch.staged);
  for (uint32_t first = 0; first < args.n_tokens; first += kBlock) {
    LeaveOutOfBlock(args, panels, scratch, first);
  }
  const uint32_t n_good = SumColumns(args, panels, scratch);
  Soften(static_cast<float>(n_good), args.n_tokens, scratch.scales);
  Mix(args, scratch.scales);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(Subtract);

size_t RedundancyScratchBytes(uint32_t n_tokens, uint32_t head_dim) {
  return HWY_STATIC_DISPATCH(ScratchBytes)(n_tokens, head_dim);
}

void SubtractRedundancy(SimdTarget simd, const Redundancy& args) {
  KV_DISPATCH(simd, Subtract)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
