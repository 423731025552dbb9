#include "core/kernels/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/fused.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/merge.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "core/dtypes/store-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

constexpr float kLeastNorm = 1e-6f;  // least divisor of a key
constexpr float kPlus = 1e-6f;  // added to a sum of norms before dividing by it
constexpr float kLeastWeight = 1e-6f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kNone = UINT32_MAX;

// ---- A worker's memory ----

// Tokens that stay are numbered t in order, and those that are evicted are
// numbered e. Only those that take part are numbered.
struct Scratch {
  float* scales;        // [n_tokens]: factor from a key to u; 0: takes no part
  float* norms;         // [n_tokens]: norms of values
  uint32_t* slots;      // [n_tokens]: slots of all t, then of all e
  float* similarities;  // [n_tokens]: of e, then its weight
  uint32_t* next;   // [n_tokens]: target of e, then the next e of that target
  uint32_t* first;  // [n_tokens]: first e of t
  float* sorted;    // [n_tokens]
  float* staged;    // a panel's rows
  float* panel;     // packed rows
  float* block;     // rows of a block

  Scratch(const MergeRowsArgs& args, uint8_t* memory) {
    const size_t n = args.n_tokens;
    const size_t dim = std::max(args.key_dim, args.value_dim);
    scales = reinterpret_cast<float*>(memory);
    norms = scales + n;
    slots = reinterpret_cast<uint32_t*>(norms + n);
    similarities = reinterpret_cast<float*>(slots + n);
    next = reinterpret_cast<uint32_t*>(similarities + n);
    first = next + n;
    sorted = reinterpret_cast<float*>(first + n);
    staged = sorted + n;
    panel = staged + RowPanel::StagedFloats(dim);
    block = panel + RowPanel::PanelFloats(dim);
  }
};

constexpr size_t ScratchBytes(size_t n_tokens, size_t key_dim,
                              size_t value_dim) {
  const size_t dim = key_dim > value_dim ? key_dim : value_dim;
  return sizeof(float) * (7 * n_tokens + RowPanel::StagedFloats(dim) +
                          RowPanel::PanelFloats(dim) + BlockFloats(key_dim));
}

// Merges the rows of one head.
class Merger {
 public:
  explicit Merger(const MergeRowsArgs& args)
      : args_(args), s_(args, args.scratch) {}

  void Run() {
    FindNorms();
    Split();
    if (n_kept_ == 0 || n_gone_ == 0) return;
    std::fill_n(s_.next, n_gone_, kNone);
    for (uint32_t first = 0; first < n_gone_; first += kBlock) {
      FindTargets(first);
    }
    Weigh();
    Chain();
    for (uint32_t t = 0; t < n_kept_; ++t) MergeInto(t);
  }

 private:
  const uint32_t* kept() const { return s_.slots; }
  const uint32_t* gone() const { return s_.slots + n_kept_; }

  // norms[0, n_tokens) of rows.
  void NormsOf(const RowSource& rows, uint32_t dim, float* norms) const {
    const RowPanel panel(dim, s_.staged, s_.panel);
    HWY_ALIGN float squares[2 * kRowPad];
    for (uint32_t t = 0; t < args_.n_tokens; t += RowPanel::Width()) {
      const uint32_t n = std::min(RowPanel::Width(), args_.n_tokens - t);
      panel.Pack(n, [&](uint32_t i, float* row)
                        HWY_ATTR { LoadRow(rows, t + i, 0, dim, row); });
      panel.SquaresOf(squares);
      for (uint32_t i = 0; i < n; ++i) norms[t + i] = std::sqrt(squares[i]);
    }
  }

  void FindNorms() {
    NormsOf(args_.keys, args_.key_dim, s_.scales);
    if (args_.value_dim > 0) NormsOf(args_.values, args_.value_dim, s_.norms);
    for (uint32_t i = 0; i < args_.n_tokens; ++i) {
      const bool takes_part = s_.scales[i] < kInfinity &&
                              (args_.value_dim == 0 || s_.norms[i] < kInfinity);
      s_.scales[i] =
          takes_part ? 1.0f / std::max(s_.scales[i], kLeastNorm) : 0.0f;
    }
  }

  void Split() {
    n_kept_ = 0;
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      const auto slot = static_cast<uint32_t>(args_.keep[i]);
      if (s_.scales[slot] != 0.0f) s_.slots[n_kept_++] = slot;
    }
    n_gone_ = 0;
    uint32_t next_kept = 0;
    for (uint32_t slot = 0; slot < args_.n_tokens; ++slot) {
      if (next_kept < args_.n_keep &&
          static_cast<uint32_t>(args_.keep[next_kept]) == slot) {
        ++next_kept;
      } else if (s_.scales[slot] != 0.0f) {
        s_.slots[n_kept_ + n_gone_++] = slot;
      }
    }
  }

  // row = the direction u of a slot's key.
  HWY_INLINE void LoadDirection(uint32_t slot, float* row) const {
    LoadRow(args_.keys, slot, 0, args_.key_dim, row);
    ScaleRow(s_.scales[slot], PaddedRow(args_.key_dim), row);
  }

  // Finds the targets of tokens e from `first` on.
  void FindTargets(uint32_t first) const {
    const size_t dim = args_.key_dim;
    const uint32_t width = RowPanel::Width();
    const uint32_t n = std::min(kBlock, n_gone_ - first);
    const uint32_t n_groups = PackBlock(
        n, dim,
        [&](uint32_t r, float* row)
            HWY_ATTR { LoadDirection(gone()[first + r], row); },
        s_.staged, s_.block);
    float best[kBlock];
    uint32_t target[kBlock];
    std::fill_n(best, kBlock, -kInfinity);
    const RowPanel panel(dim, s_.staged, s_.panel);
    for (uint32_t t = 0; t < n_kept_; t += width) {
      const uint32_t n_columns = std::min(width, n_kept_ - t);
      panel.Pack(n_columns, [&](uint32_t i, float* row) HWY_ATTR {
        LoadDirection(kept()[t + i], row);
      });
      for (uint32_t g = 0; g < n_groups; ++g) {
        const uint32_t row = g * static_cast<uint32_t>(kRowsPerBlock);
        HWY_ALIGN float cosines[kRowsPerBlock * 2 * kRowPad];
        MultiplyBlock(s_.block + row * dim, panel.data(), dim, cosines, width);
        for (uint32_t r = 0; r < kRowsPerBlock; ++r) {
          float* const mine = cosines + r * width;
          for (uint32_t i = n_columns; i < width; ++i) mine[i] = -kInfinity;
          FindBetter(mine, t, &best[row + r], &target[row + r]);
        }
      }
    }
    std::copy_n(best, n, s_.similarities + first);
    std::copy_n(target, n, s_.next + first);
  }

  // Takes the first of the highest cosines of a panel if it is higher than the
  // best.
  static HWY_INLINE void FindBetter(const float* cosines, uint32_t t,
                                    float* best, uint32_t* target) {
    const RowTag d;
    const size_t lanes = hn::Lanes(d);
    const auto a = hn::LoadU(d, cosines);
    const auto b = hn::LoadU(d, cosines + lanes);
    const auto most = hn::Max(a, b);
    if (hn::AllFalse(d, hn::Gt(most, hn::Set(d, *best)))) return;
    const auto highest = hn::MaxOfLanes(d, most);
    *best = hn::GetLane(highest);
    const intptr_t at = hn::FindFirstTrue(d, hn::Eq(a, highest));
    *target =
        t + static_cast<uint32_t>(at >= 0 ? static_cast<size_t>(at)
                                          : lanes + hn::FindKnownFirstTrue(
                                                        d, hn::Eq(b, highest)));
  }

  // The similarity that tokens must reach to merge. Of all evicted tokens,
  // those below the threshold and those that take no part count as -infinity.
  float Cutoff() const {
    if (args_.quantile == 0.0f) return args_.threshold;
    const uint32_t n = args_.n_tokens - args_.n_keep;
    float* const all = s_.sorted;
    std::fill_n(all, n, -kInfinity);
    for (uint32_t e = 0; e < n_gone_; ++e) {
      if (s_.similarities[e] >= args_.threshold) all[e] = s_.similarities[e];
    }
    // The product is rounded to f32 before it is used.
    const auto rank =
        static_cast<float>(double{args_.quantile} * static_cast<float>(n - 1));
    const uint32_t below = std::min(static_cast<uint32_t>(rank), n - 1);
    const float part = rank - static_cast<float>(below);
    std::nth_element(all, all + below, all + n);
    const float low = all[below];
    if (low == -kInfinity || part == 0.0f || below + 1 == n) {
      return std::max(low, args_.threshold);
    }
    const float high = *std::min_element(all + below + 1, all + n);
    return FusedMulAdd(part, high - low, low);
  }

  // Replaces similarities by weights, 0 if a token does not merge. next[e] is
  // its target.
  void Weigh() const {
    const float cutoff =
        args_.rule == MergeRule::kValues ? Cutoff() : -kInfinity;
    for (uint32_t e = 0; e < n_gone_; ++e) {
      const float similarity = s_.similarities[e];
      s_.similarities[e] =
          similarity >= cutoff ? WeightOf(e, similarity) : 0.0f;
    }
  }

  float WeightOf(uint32_t e, float similarity) const {
    switch (args_.rule) {
      case MergeRule::kPivot:
        return 0.5f;
      case MergeRule::kWeighted:
        return std::max((similarity + 1.0f) * 0.5f, kLeastWeight);
      case MergeRule::kValues:
        break;
    }
    const float mine = s_.norms[gone()[e]];
    const float others = s_.norms[kept()[s_.next[e]]];
    return std::max(similarity, 0.0f) * mine / (mine + others + kPlus);
  }

  // Links the e of each target in ascending order.
  void Chain() const {
    std::fill_n(s_.first, n_kept_, kNone);
    for (uint32_t e = n_gone_; e-- > 0;) {
      if (!(s_.similarities[e] > 0.0f)) continue;
      const uint32_t target = s_.next[e];
      s_.next[e] = s_.first[target];
      s_.first[target] = e;
    }
  }

  void MergeInto(uint32_t t) const {
    if (s_.first[t] == kNone) return;
    if (args_.rule != MergeRule::kValues) {
      MergeRow(args_.keys, args_.key_dim, t);
    }
    if (args_.value_dim > 0) MergeRow(args_.values, args_.value_dim, t);
  }

  void MergeRow(const RowSource& rows, uint32_t dim, uint32_t t) const {
    const size_t padded = PaddedRow(dim);
    const auto load = [&](uint32_t slot, float* row)
                          HWY_ATTR { LoadRow(rows, slot, 0, dim, row); };
    float* const row = s_.staged;
    float* const sum = s_.panel;
    load(kept()[t], sum);
    float weights = 0.0f;
    for (uint32_t e = s_.first[t]; e != kNone; e = s_.next[e]) {
      load(gone()[e], row);
      AddScaledRow(row, s_.similarities[e], padded, sum);
      weights += s_.similarities[e];
    }
    if (args_.rule == MergeRule::kPivot) {  // half of x_t for each
      load(kept()[t], row);
      AddScaledRow(row, weights, padded, sum);
      weights *= 2.0f;
    }
    const RowTag d;
    const auto by = hn::Set(d, 1.0f + weights);
    for (size_t i = 0; i < padded; i += hn::Lanes(d)) {
      hn::StoreU(hn::Div(hn::LoadU(d, sum + i), by), d, sum + i);
    }
    StoreRow(sum, rows, kept()[t], 0, dim);
  }

  const MergeRowsArgs& args_;
  const Scratch s_;
  uint32_t n_kept_ = 0;
  uint32_t n_gone_ = 0;
};

void Merge(const MergeRowsArgs& args) {
  if (args.n_keep < args.n_tokens) Merger(args).Run();
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(Merge);

size_t MergeScratchBytes(uint32_t n_tokens, uint32_t key_dim,
                         uint32_t value_dim) {
  return HWY_STATIC_DISPATCH(ScratchBytes)(n_tokens, key_dim, value_dim);
}

void MergeRows(SimdTarget simd, const MergeRowsArgs& args) {
  KV_DISPATCH(simd, Merge)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
