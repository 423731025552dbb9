// Turns logits of a tile into weights by online softmax.
#if defined(KVEVICT_CORE_KERNELS_ATTENTION_SOFTMAX_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_ATTENTION_SOFTMAX_INL_H_
#undef KVEVICT_CORE_KERNELS_ATTENTION_SOFTMAX_INL_H_
#else
#define KVEVICT_CORE_KERNELS_ATTENTION_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dtypes/load-inl.h"
#include "core/kernels/attention.h"
#include "core/kernels/cap-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The reference of a row that has seen nothing.
inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A reference is raised only if a logit exceeds it by this much (base 2). That
// is rare, and far from overflow.
inline constexpr float kRaise = 8.0f;

// The base of weights: the reference, or 0 if that is -infinity, which cannot
// be subtracted.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V BaseOf(D d, V reference) {
  return hn::IfThenZeroElse(hn::Eq(reference, hn::Set(d, kNothing)), reference);
}

// References after the highest logits of a tile.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V Raised(D d, V reference, V highest) {
  const auto is_above = hn::Gt(highest, hn::Add(reference, hn::Set(d, kRaise)));
  return hn::IfThenElse(is_above, highest, reference);
}

// The factor for sums that were relative to the reference before it was raised.
template <class D, class V = hn::VFromD<D>>
HWY_INLINE V FactorOf(D d, V before, V raised) {
  const V factor = Exp2(d, hn::Sub(before, raised));
  return hn::IfThenElse(hn::Eq(before, raised), hn::Set(d, 1.0f), factor);
}

// The slots of a tile that query first_query + i sees, counted from the tile's
// first.
HWY_INLINE SlotSpan SeenInTile(const Attention& args, uint32_t i, uint32_t slot,
                               uint32_t n) {
  const SlotSpan seen = args.SeenBy(i);
  const auto clamp = [&](uint32_t s) {
    return std::clamp(s, slot, slot + n) - slot;
  };
  return {clamp(seen.begin), clamp(seen.end)};
}

// Whether all queries see n slots from `slot` on.
HWY_INLINE bool AllSee(const Attention& args, uint32_t slot, uint32_t n) {
  return args.SeenBy(0).end >= slot + n &&
         args.SeenBy(args.n_queries - 1).begin <= slot;
}

// Loads the biases of slots in base 2, padded to a tile.
HWY_INLINE void LoadBiases(const RowSource& biases, SlotSpan tile, size_t n,
                           float* to) {
  for (uint32_t t = tile.begin; t < tile.end; ++t) {
    float bias;
    std::memcpy(&bias, biases.Row(t), sizeof(bias));
    *to++ = bias * kLog2OfE;
  }
  std::fill_n(to, n - tile.size(), 0.0f);
}

// Loads a query row of a head, scaled.
HWY_INLINE void LoadQuery(const Attention& args, uint32_t head, uint32_t r,
                          float* row) {
  RowSource rows = args.queries;
  rows.base += static_cast<int64_t>(head * args.group + r % args.group) *
               args.query_head_stride;
  LoadRow(rows, args.first_query + r / args.group, 0, args.k_dim, row);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
