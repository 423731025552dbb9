#include "core/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/attention_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/store-inl.h"
#include "core/kernels/attention_dots-inl.h"
#include "core/kernels/attention_products-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

void AttendSpanOf(const Attention& args, SlotSpan span,
                  const AttentionState& state, float* scratch) {
  // Matrix products also write some rows past the last.
  const size_t n_rows = InPanels(args.n_rows()) + kSpareRows;
  std::fill_n(state.reference, n_rows, kNothing);
  std::fill_n(state.sum, n_rows, 0.0f);
  std::fill_n(state.out, n_rows * AttentionState::OutStride(args.v_dim), 0.0f);
  const SlotSpan seen = args.Seen();
  span = {std::max(span.begin, seen.begin / kAttentionTile * kAttentionTile),
          std::min(span.end, seen.end)};
  if (span.begin >= span.end) return;
  const AttentionParts parts(args, scratch);
  if (UsesDots(args.rows_per_head())) {
    AttendByDots(args, span, state, parts);
  } else {
    AttendByProducts(args, span, state, parts);
  }
}

// 2^(reference - to). Both may be -infinity.
HWY_INLINE float WeightOf(float reference, float to) {
  return reference == kNothing ? 0.0f : std::exp2(reference - to);
}

void JoinStates(uint32_t n_rows, uint32_t v_dim, const AttentionState& from,
                const AttentionState& to) {
  const RowTag d;
  const size_t stride = AttentionState::OutStride(v_dim);
  for (size_t r = 0; r < n_rows; ++r) {
    const float highest = std::max(to.reference[r], from.reference[r]);
    const float a = WeightOf(to.reference[r], highest);
    const float b = WeightOf(from.reference[r], highest);
    to.sum[r] = a * to.sum[r] + b * from.sum[r];  // NaN is kept
    to.reference[r] = highest;
    const auto weight_a = hn::Set(d, a), weight_b = hn::Set(d, b);
    float* const out = to.out + r * stride;
    const float* const more = from.out + r * stride;
    for (size_t i = 0; i < PaddedRow(v_dim); i += hn::Lanes(d)) {
      const auto scaled = hn::Mul(hn::LoadU(d, out + i), weight_a);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, more + i), weight_b, scaled), d,
                 out + i);
    }
  }
}

// The factor that turns a row's weighted sum of values into their mean. The
// log-sum-exp goes to *lse.
HWY_INLINE float FinishRow(float reference, float sum, const float* sink,
                           float* lse) {
  constexpr double kLn2 = 0.69314718055994530942;
  double highest = reference;
  double total = sum;
  if (sink != nullptr) {
    const double x = *sink / kLn2;
    highest = std::max(x, highest);
    if (total != 0.0) total *= std::exp2(reference - highest);
    if (x != kNothing) total += std::exp2(x - highest);
  }
  if (total == 0.0) {
    *lse = kNothing;
    return 0.0f;
  }
  *lse = static_cast<float>(kLn2 * (highest + std::log2(total)));
  return static_cast<float>(std::exp2(reference - highest) / total);
}

void FinishRows(const Attention& args, const AttentionState& state,
                const AttentionResult& result) {
  const size_t stride = AttentionState::OutStride(args.v_dim);
  for (uint32_t r = 0; r < args.n_rows(); ++r) {
    const uint32_t head =
        r / args.rows_per_head() * args.group + r % args.group;
    const uint32_t query =
        args.first_query + r % args.rows_per_head() / args.group;
    const float* const sink =
        result.sinks == nullptr ? nullptr : result.sinks + head;
    float lse;
    const float scale = FinishRow(state.reference[r], state.sum[r], sink, &lse);
    float* const out = state.out + r * stride;
    ScaleRow(scale, PaddedRow(args.v_dim), out);
    RowSource rows = result.out;
    rows.base += head * result.out_head_stride;
    StoreRow(out, rows, query, 0, args.v_dim);
    if (result.lse == nullptr) continue;
    std::memcpy(result.lse + head * result.lse_head_stride +
                    query * result.lse_row_stride,
                &lse, sizeof(lse));
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

size_t AttentionState::OutStride(uint32_t v_dim) { return InPanels(v_dim); }

namespace {
size_t StateRows(uint32_t n_rows) { return InPanels(n_rows) + kPanel; }
}  // namespace

size_t AttentionState::Floats(uint32_t n_rows, uint32_t v_dim) {
  return StateRows(n_rows) * (2 + OutStride(v_dim));
}

AttentionState AttentionState::At(float* memory, uint32_t n_rows) {
  const size_t n = StateRows(n_rows);
  return {memory, memory + n, memory + 2 * n};
}

size_t AttentionScratchFloats(const Attention& args) {
  return AttentionParts(args, nullptr).n_floats;
}

HWY_EXPORT(AttendSpanOf);
HWY_EXPORT(JoinStates);
HWY_EXPORT(FinishRows);

void AttendSpan(SimdTarget simd, const Attention& args, SlotSpan span,
                const AttentionState& state, float* scratch) {
  KV_DISPATCH(simd, AttendSpanOf)(args, span, state, scratch);
}

void JoinAttention(SimdTarget simd, uint32_t n_rows, uint32_t v_dim,
                   const AttentionState& from, const AttentionState& to) {
  KV_DISPATCH(simd, JoinStates)(n_rows, v_dim, from, to);
}

void FinishAttention(SimdTarget simd, const Attention& args,
                     const AttentionState& state,
                     const AttentionResult& result) {
  KV_DISPATCH(simd, FinishRows)(args, state, result);
}

}  // namespace kvevict
#endif  // HWY_ONCE
