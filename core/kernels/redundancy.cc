#include "core/kernels/redundancy.h"

#include <algorithm>
#include <limits>

// This kernel multiplies bytes, which needs this target.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/redundancy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/code_panels-inl.h"
#include "core/kernels/directions-inl.h"
#include "core/kernels/exp2-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

constexpr float kPlus = 1e-8f;  // added to a norm before dividing by it
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = 1.44269504088896340736f;
// Softmax: terms i, i + kSums, ... are added up separately.
constexpr size_t kSums = 256;
// Fixed-point units of an entry.
constexpr float kUnits = 4294967296.0f;

// ---- A worker's memory ----

constexpr size_t WholeBlocks(size_t n_tokens) {
  return (n_tokens + kBlock - 1) / kBlock * kBlock;
}

struct Scratch {
  // The sum of the entries that rows left out of each column, in fixed point.
  int64_t* left_out;  // [n_tokens]
  float* scales;      // [n_tokens]: factor from a key to u, 0 if there is none
  float* sum;         // [padded]: sum of all u
  float* piece;       // [padded]
  float* staged;      // a panel's rows
  float* panel;       // [padded, 2 * lanes]: packed keys
  float* block;       // [kBlock / kRowsPerBlock, head_dim, kRowsPerBlock]
  float* others;      // [n_tokens]: sum of a column
  float* firsts;      // [n_tokens]: cosines with key 0
  // [whole blocks]: the entry that a row leaves out is found, or there is no
  // row.
  uint8_t* is_found;
  uint8_t* codes;  // CodePanels

  Scratch(const Redundancy& args, uint8_t* memory) {
    const size_t padded = PaddedRow(args.head_dim);
    left_out = reinterpret_cast<int64_t*>(memory);
    scales = reinterpret_cast<float*>(left_out + args.n_tokens);
    sum = scales + args.n_tokens;
    piece = sum + padded;
    staged = piece + padded;
    panel = staged + RowPanel::StagedFloats(args.head_dim);
    block = panel + RowPanel::PanelFloats(args.head_dim);
    others = block + BlockFloats(args.head_dim);
    firsts = others + args.n_tokens;
    is_found = reinterpret_cast<uint8_t*>(firsts + args.n_tokens);
    codes = is_found + WholeBlocks(args.n_tokens);
  }
};

// The same on every target.
constexpr size_t ScratchBytes(size_t n_tokens, size_t dim) {
  return n_tokens * (sizeof(int64_t) + 3 * sizeof(float)) +
         sizeof(float) * (2 * PaddedRow(dim) + RowPanel::StagedFloats(dim) +
                          RowPanel::PanelFloats(dim) + BlockFloats(dim)) +
         WholeBlocks(n_tokens) + CodePanels::Bytes(n_tokens, dim);
}

// ---- Columns ----

// Computes the sums of all columns. With `codes` also the codes, and cosines
// with the first key.
void MeasureColumns(const Redundancy& args, const DirectionPanels& panels,
                    const Scratch& s, CodePanels* codes) {
  const RowTag d;
  const auto multiply = [&](const float* row, float* products) HWY_ATTR {
    panels.SumOver(
        [&](size_t e, auto v, auto sum)
            HWY_ATTR { return hn::MulAdd(v, hn::Set(d, row[e]), sum); },
        products);
  };
  float* const first = s.piece;
  panels.Load(0, true, first);
  float dots[2 * kRowPad], squares[2 * kRowPad], firsts[2 * kRowPad];
  for (uint32_t t = 0; t < args.n_tokens; t += RowPanel::Width()) {
    const uint32_t n = std::min(args.n_tokens - t, RowPanel::Width());
    panels.PackOnward(t, true);
    multiply(s.sum, dots);
    panels.SquaresOf(squares);
    for (uint32_t i = 0; i < n; ++i) s.others[t + i] = dots[i] - squares[i];
    if (codes == nullptr) continue;
    multiply(first, firsts);
    std::copy_n(firsts, n, s.firsts + t);
    codes->Add(panels.data(), t);
  }
  if (codes != nullptr) codes->Finish();
}

// ---- The entry that each row leaves out ----

// The last of a row's cosines with the panel's keys that is similar, or -1.
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

// Cosines are symmetric, so rows are multiplied only with panels from their own
// on. The keys of a panel then find among the earlier rows what they have not
// found yet. In this way every row is compared with keys from the last one
// down.
class Search {
 public:
  Search(const Redundancy& args, const DirectionPanels& panels,
         const Scratch& scratch)
      : args_(args),
        panels_(panels),
        s_(scratch),
        codes_(args.head_dim, args.n_tokens, args.threshold, scratch.codes) {}

  // True if columns have been measured and codes exist.
  bool is_coded() const { return is_coded_; }

  void Run() {
    std::fill_n(s_.left_out, args_.n_tokens, 0);
    const size_t n_rows = WholeBlocks(args_.n_tokens);
    std::fill_n(s_.is_found, args_.n_tokens, uint8_t{0});
    std::fill(s_.is_found + args_.n_tokens, s_.is_found + n_rows, uint8_t{1});
    for (uint32_t end = static_cast<uint32_t>(n_rows); end > 0; end -= kBlock) {
      MeetPanels(end - kBlock);
    }
    for (uint32_t i = 0; n_left_ > 0; ++i) {
      if (s_.is_found[i] == 0) Find(i, 0, i == 0 ? 0.0f : s_.firsts[i]);
    }
  }

 private:
  uint32_t CountLeft(uint32_t first, uint32_t n) const {
    uint32_t n_left = n;
    for (uint32_t i = first; i < first + n; ++i) n_left -= s_.is_found[i];
    return n_left;
  }

  void Find(uint32_t row, uint32_t key, float cosine) {
    s_.left_out[key] += static_cast<int64_t>(cosine * kUnits);
    s_.is_found[row] = 1;
    --n_left_;
  }

  void PackRows(uint32_t first) const {
    PackBlock(
        std::min(kBlock, args_.n_tokens - first), args_.head_dim,
        [&](uint32_t r, float* row)
            HWY_ATTR { panels_.Load(first + r, true, row); },
        s_.staged, s_.block);
  }

  // Compares a block's rows with panels from the last one down to the block's
  // own first.
  void MeetPanels(uint32_t first) {
    n_left_ += CountLeft(first, kBlock);
    const uint32_t width = RowPanel::Width();
    bool has_rows = false, has_codes = false;
    for (uint32_t key = (args_.n_tokens - 1) / width * width;; key -= width) {
      const uint32_t n_keys = CountLeft(key, width);
      if (n_left_ == 0) return;
      bool has_keys = false;
      for (uint32_t end = first + kBlock; end > first; end -= kRowsPerBlock) {
        const uint32_t row = end - static_cast<uint32_t>(kRowsPerBlock);
        if (row >= args_.n_tokens) continue;
        // its panel has been compared with these rows
        if (row >= key + width) continue;
        if (n_keys == 0 && CountLeft(row, kRowsPerBlock) == 0) continue;
        if (is_coded_ && !has_codes) {
          codes_.TakeRows(first, std::min(kBlock, args_.n_tokens - first));
        }
        has_codes = is_coded_;
        if (is_coded_ && !codes_.MayMeet(row, key)) continue;
        if (!has_rows) PackRows(first);
        if (!has_keys) panels_.Pack(key, true);
        has_rows = has_keys = true;
        Meet(first, row, key, n_keys > 0 && row < key);
      }
      if (key == first) return;
      if (kHasCodes && !is_coded_ && n_left_ > 0) {
        MeasureColumns(args_, panels_, s_, &codes_);
        is_coded_ = true;
      }
    }
  }

  // Compares rows [row, row + kRowsPerBlock) of the block at `first` with the
  // panel's keys. A missing key has a cosine of 0. If `look` the keys also
  // search among the rows.
  void Meet(uint32_t first, uint32_t row, uint32_t key, bool look) {
    const uint32_t width = RowPanel::Width();
    HWY_ALIGN float cosines[kRowsPerBlock * 2 * kRowPad];
    MultiplyBlock(s_.block + size_t{row - first} * args_.head_dim, s_.panel,
                  args_.head_dim, cosines, width);
    for (uint32_t r = 0; r < kRowsPerBlock; ++r) {
      float* const mine = cosines + r * width;
      const uint32_t self = row + r;
      if (self >= key && self - key < width) mine[self - key] = 0.0f;
      if (s_.is_found[self] != 0) continue;
      int last = LastSimilar(mine, args_.threshold);
      if (last < 0 && key > 0) continue;
      last = std::max(last, 0);  // no key is similar: column 0
      Find(self, key + static_cast<uint32_t>(last), mine[last]);
    }
    for (uint32_t r = kRowsPerBlock; look && r-- > 0;) {
      const float* const mine = cosines + r * width;
      const bool is_first = row + r == 0;
      if (!is_first && LastSimilar(mine, args_.threshold) < 0) continue;
      for (uint32_t i = 0; i < width; ++i) {
        if (s_.is_found[key + i] != 0) continue;
        if (is_first || mine[i] > args_.threshold)
          Find(key + i, row + r, mine[i]);
      }
    }
  }

  const Redundancy& args_;
  const DirectionPanels& panels_;
  const Scratch& s_;
  CodePanels codes_;
  bool is_coded_ = false;  // set once a whole panel has left a row unfound
  uint32_t n_left_ = 0;    // compared rows that have found nothing
};

// ---- Redundancy ----

// Replaces scales[j] of every key by the sum of column j minus what was left
// out; NaN for a key without a direction. Returns the number of keys that have
// one.
uint32_t SumColumns(const Redundancy& args, const Scratch& s) {
  uint32_t n_good = 0;
  for (uint32_t i = 0; i < args.n_tokens; ++i) {
    const bool is_good = s.scales[i] != 0.0f;
    s.scales[i] = is_good ? s.others[i] - static_cast<float>(s.left_out[i]) *
                                              (1.0f / kUnits)
                          : kNan;
    n_good += is_good;
  }
  return n_good;
}

// The softmax of columns / n_good, in place. NaN stays and is left out.
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
  FindDirections(directions, panels, scratch.sum, scratch.piece);
  Search search(args, panels, scratch);
  search.Run();
  if (!search.is_coded()) MeasureColumns(args, panels, scratch, nullptr);
  const uint32_t n_good = SumColumns(args, scratch);
  Soften(static_cast<float>(n_good), args.n_tokens, scratch.scales);
  Mix(args, scratch.scales);
}

}  // namespace
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
