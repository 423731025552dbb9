// Log-sum-exps of the rows of window_attention.cu, in base 2: sums of weights
// over keys, and what the splits' sums say of a row's weights. NaN and infinity
// follow core/kernels/window_attention.h: a row's log-sum-exp is NaN if all its
// weights must be NaN.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_LSE_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_LSE_CUH_

#include "device.cuh"
#include "window_attention_rows.cuh"

namespace kvevict::cuda {
namespace {

// Stands for no logit; lower than all logits.
constexpr float kNoReference = -1e30f;

// The sum of 2^(logit - reference) over the keys seen so far. The reference is
// the largest logit at the time it was set, so the sum was >= 1 then. It is
// raised only when a sum exceeds 2^64. So most keys need no comparison, and no
// term that counts is lost: the largest logit is at most 64 higher.
struct RowSum {
  float reference;
  float sum;
};
KV_DEVICE RowSum NoKeys() { return {kNoReference, 0.0f}; }
constexpr float kHighSum = 0x1p64f;

// Joins sums over disjoint keys.
KV_DEVICE RowSum Join(const RowSum& a, const RowSum& b) {
  const float reference = a.reference > b.reference ? a.reference : b.reference;
  return {reference, a.sum * Exp2(a.reference - reference) +
                         b.sum * Exp2(b.reference - reference)};
}

// -infinity if no key counted. NaN if a logit was +infinity or NaN.
KV_DEVICE float LogSum(const RowSum& row) {
  return row.reference + Log2(row.sum);
}

// v - v is NaN for infinity, else 0.
KV_DEVICE float FiniteOrNan(float v) { return v + (v - v); }

// The log-sum-exp that weights are relative to. If biases hide all slots of a
// row, its weights are 0.
KV_DEVICE float LogSumOf(float lse) {
  if (KV_BIAS != 0 && lse == -ToFloat<kF32>(kInfinityBits)) {
    return -kNoReference;
  }
  return FiniteOrNan(lse);
}

KV_DEVICE bool KnowsLse(const Work& work) {
  return KV_SINKS == 0 && work.layer.row_lse != 0;
}

// The largest sink of the query heads of a row, in base 2.
KV_DEVICE float RowSink(const Work& work, const QueryRow& row) {
  const uint64_t first =
      work.layer.row_lse +
      4 * ((uint64_t{work.kv_head} * kGroup + row.head) * kLogitHeads);
  float sink = LoadGlobal<float>(first);
  for (uint32_t h = 1; h < kLogitHeads; ++h) {
    const float other = LoadGlobal<float>(first + 4 * h);
    if (other > sink) sink = other;
  }
  return sink * 1.4426950408889634f;
}

// The log-sum-exp of a row over all splits, added in their order, or the one
// from the caller, a natural logarithm.
KV_DEVICE float RowLogSum(const Work& work, uint32_t block, uint32_t r) {
  const QueryRow row = FindQueryRow(work, block, r);
  if (!row.valid) return 0.0f;
  if (KnowsLse(work)) {
    const float lse = LoadGlobal<float>(
        work.layer.row_lse +
        (uint64_t{work.kv_head} * kGroup + row.head) * work.p.lse_head_stride +
        StoredRow(work, row.window) * work.p.lse_row_stride);
    return LogSumOf(lse * 1.4426950408889634f);
  }
  if constexpr (KV_CHUNKS != 0) {
    return LogSumOf(LoadGlobal<float>(PartialAddress(work, blockIdx.x, row)));
  }
  const uint32_t n_splits = SplitsOfLayer(work);
  const uint64_t first = PartialAddress(work, 0, row);
  RowSum all = NoKeys();
  // Issues eight loads at a time.
  for (uint32_t s = 0; s < n_splits; s += 8) {
    float partial[8] = {};
    for (uint32_t i = 0; i < 8; ++i) {
      if (s + i < n_splits) {
        partial[i] = LoadGlobal<float>(first + (s + i) * kSplitBytes);
      }
    }
    for (uint32_t i = 0; i < 8; ++i) {
      if (s + i < n_splits) all = Join(all, {partial[i], 1.0f});
    }
  }
  if constexpr (KV_SINKS != 0) all = Join(all, {RowSink(work, row), 1.0f});
  return LogSumOf(LogSum(all));
}

// The base of the exponents of a row's weights: its log-sum-exp minus the
// logarithm of the weights' factor.
KV_DEVICE float RowReference(const Work& work, uint32_t block, uint32_t r) {
  const float lse = RowLogSum(work, block, r);
  if constexpr (KV_LISTED != 0) {
    const QueryRow row = FindQueryRow(work, block, r);
    if (!row.valid) return lse;
    const float weight = LoadGlobal<float>(ListedAddress(work, row) + 4);
    return weight == 0.0f ? lse - kNoReference : lse - Log2(weight);
  }
  if constexpr (KV_WEIGH_BY_PAST != 0) {
    const uint32_t n_past =
        work.n_tokens() - kWindow + FindQueryRow(work, block, r).window;
    // If no key is before, all weights are 0.
    return n_past == 0 ? lse - kNoReference
                       : lse - Log2(static_cast<float>(n_past));
  }
  return lse;
}

// NaN if either is.
KV_DEVICE float Larger(float a, float b) { return a > b || a != a ? a : b; }

// Combines the weights of two rows.
KV_DEVICE float Combine(float a, float b) {
  return KV_MAX_OF_ROWS != 0 ? Larger(a, b) : a + b;
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_LSE_CUH_
