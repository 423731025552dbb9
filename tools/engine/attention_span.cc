#include "tools/engine/attention_span.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/engine/attention_span.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "tools/engine/vector-inl.h"

#ifndef KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_ONCE
#define KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_ONCE
namespace kvevict::tools {

// Working memory of one thread, grown as needed and kept: fresh pages would cost as
// much as the arithmetic of a short span.
struct SpanScratch {
  float* queries;  // [n_rows, k_head_dim], scaled
  float* keys;     // [kTileSlots / panel, k_head_dim, panel]; of one KV head
  float* values;   // [n_kv_heads, panels of v_head_dim, kTileSlots, panel]
  float* weights;  // [n_rows, kTileSlots]
};

SpanScratch ThreadScratch(const AttentionSpan& span, size_t panel);

// v_head_dim in whole panels.
inline size_t PaddedCols(size_t v_head_dim, size_t panel) {
  return (v_head_dim + panel - 1) / panel * panel;
}

}  // namespace kvevict::tools
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::tools {
namespace HWY_NAMESPACE {

// Rows of a head that make its keys worth transposing; fewer use dot products.
constexpr uint32_t kRowsToTranspose = 16;

// Turns a [4, 4] block around. 128-bit vectors, which every target has.
HWY_INLINE void Transpose4x4(const float* from, size_t from_stride, float* to,
                             size_t to_stride) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> dd;
  const auto r0 = hn::LoadU(d, from);
  const auto r1 = hn::LoadU(d, from + from_stride);
  const auto r2 = hn::LoadU(d, from + 2 * from_stride);
  const auto r3 = hn::LoadU(d, from + 3 * from_stride);
  const auto lo01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
  const auto lo23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
  const auto hi01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
  const auto hi23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::ConcatLowerLower(dd, lo23, lo01)), d, to);
  hn::StoreU(hn::BitCast(d, hn::ConcatUpperUpper(dd, lo23, lo01)), d,
             to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::ConcatLowerLower(dd, hi23, hi01)), d,
             to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::ConcatUpperUpper(dd, hi23, hi01)), d,
             to + 3 * to_stride);
}

// Four rows of `from`, converted, to columns [0, 4) of `to` [n, to_stride].
template <typename T>
HWY_INLINE void TransposeRows(const T* const rows[4], size_t n, float* to,
                              size_t to_stride) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  alignas(64) float block[4 * 16];
  for (size_t e = 0; e < n; e += lanes) {
    const size_t valid = std::min(lanes, n - e);
    for (size_t r = 0; r < 4; ++r) {
      const VF x = valid == lanes ? LoadAsF32(d, rows[r] + e)
                                  : LoadAsF32(d, rows[r] + e, valid);
      hn::Store(x, d, block + r * 16);
    }
    size_t i = 0;
    for (; i + 4 <= valid; i += 4) {
      Transpose4x4(block + i, 16, to + (e + i) * to_stride, to_stride);
    }
    for (; i < valid; ++i) {
      for (size_t r = 0; r < 4; ++r) {
        to[(e + i) * to_stride + r] = block[r * 16 + i];
      }
    }
  }
}

template <typename T>
HWY_INLINE const T* Row(const uint8_t* rows, size_t stride_bytes, size_t slot) {
  return reinterpret_cast<const T*>(rows + slot * stride_bytes);
}

// The tile's keys as panels [k_head_dim, panel]. Slots past the span repeat its last
// one; their weights become 0.
template <typename T>
void PackKeys(const AttentionSpan& span, uint32_t head, uint32_t slot,
              uint32_t n_slots, float* keys) {
  const size_t panel = GemmCols();
  for (uint32_t j = 0; j < kTileSlots; j += 4) {
    const T* rows[4];
    for (uint32_t r = 0; r < 4; ++r) {
      const size_t row = slot + std::min(j + r, n_slots - 1);
      rows[r] = Row<T>(span.k, span.k_stride_bytes, row) +
                size_t{head} * span.k_head_dim;
    }
    float* to = keys + j / panel * panel * span.k_head_dim + j % panel;
    TransposeRows(rows, span.k_head_dim, to, panel);
  }
}

// The tile's values as panels [n_slots, panel], zeros where v_head_dim ends.
template <typename T>
void PackValues(const AttentionSpan& span, uint32_t slot, uint32_t n_slots,
                float* values) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t panel = GemmCols();
  const size_t head_values = PaddedCols(span.v_head_dim, panel) * kTileSlots;
  for (uint32_t j = 0; j < n_slots; ++j) {
    const T* row = Row<T>(span.v, span.v_stride_bytes, slot + j);
    for (uint32_t head = 0; head < span.n_kv_heads; ++head) {
      float* to = values + head * head_values + j * panel;
      for (size_t e = 0; e < span.v_head_dim; e += lanes) {
        const size_t valid = std::min<size_t>(lanes, span.v_head_dim - e);
        const VF x = valid == lanes ? LoadAsF32(d, row + e)
                                    : LoadAsF32(d, row + e, valid);
        hn::Store(x, d, to + e / panel * panel * kTileSlots + e % panel);
      }
      row += span.v_head_dim;
    }
  }
}

// Logits of a head's rows from its packed keys.
void MultiplyKeys(const AttentionSpan& span, uint32_t head,
                  const SpanScratch& scratch) {
  const size_t panel = GemmCols();
  const size_t n_inner = span.k_head_dim;
  const size_t begin = size_t{head} * span.rows_per_head();
  const size_t end = begin + span.rows_per_head();
  for (size_t j = 0; j < kTileSlots; j += panel) {
    for (size_t row = begin; row < end; row += kGemmRows) {
      Multiply({.a = scratch.queries + row * n_inner,
                .a_stride = n_inner,
                .b = scratch.keys + j * n_inner,
                .b_stride = panel,
                .c = scratch.weights + row * kTileSlots + j,
                .c_stride = kTileSlots,
                .n_inner = n_inner,
                .n_rows = std::min(kGemmRows, end - row),
                .n_cols = panel,
                .accumulate = false});
    }
  }
}

template <typename T>
HWY_INLINE float Dot(const T* key, const float* query, size_t n) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF s0 = hn::Zero(d), s1 = s0;
  size_t e = 0;
  for (; e + 2 * lanes <= n; e += 2 * lanes) {
    s0 = hn::MulAdd(LoadAsF32(d, key + e), hn::LoadU(d, query + e), s0);
    s1 = hn::MulAdd(LoadAsF32(d, key + e + lanes),
                    hn::LoadU(d, query + e + lanes), s1);
  }
  for (; e < n; e += lanes) {
    const size_t valid = std::min(lanes, n - e);
    s0 = hn::MulAdd(LoadAsF32(d, key + e, valid),
                    hn::LoadN(d, query + e, valid), s0);
  }
  return hn::ReduceSum(d, hn::Add(s0, s1));
}

// Logits of a few rows, straight from the cache, all heads of a slot in turn.
template <typename T>
void DotKeys(const AttentionSpan& span, uint32_t slot, uint32_t n_slots,
             const SpanScratch& scratch) {
  const size_t n = span.k_head_dim;
  for (uint32_t j = 0; j < n_slots; ++j) {
    const T* key = Row<T>(span.k, span.k_stride_bytes, slot + j);
    size_t row = 0;
    for (uint32_t head = 0; head < span.n_kv_heads; ++head) {
      for (uint32_t i = 0; i < span.rows_per_head(); ++i, ++row) {
        scratch.weights[row * kTileSlots + j] =
            Dot(key, scratch.queries + row * n, n);
      }
      key += n;
    }
  }
}

// Turns a row's logits into weights relative to its running maximum; slots from
// n_visible on get 0. Rescales what the row has gathered if the maximum rises.
HWY_INLINE void SoftmaxRow(const AttentionSpan& span, uint32_t row,
                           uint32_t n_visible, float* weights) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF highest = lowest;
  for (uint32_t j = 0; j < n_visible; j += lanes) {
    const auto visible = hn::FirstN(d, n_visible - j);
    const VF x = hn::IfThenElse(visible, hn::Load(d, weights + j), lowest);
    hn::Store(x, d, weights + j);
    highest = hn::Max(highest, x);
  }
  const float max = std::max(span.max[row], hn::ReduceMax(d, highest));
  if (max != span.max[row]) {
    const float shrink = std::exp2(span.max[row] - max);
    span.max[row] = max;
    span.sum[row] *= shrink;
    float* out = span.out + size_t{row} * span.v_head_dim;
    for (uint32_t e = 0; e < span.v_head_dim; ++e) out[e] *= shrink;
  }
  VF sum = hn::Zero(d);
  const VF reference = hn::Set(d, max);
  for (uint32_t j = 0; j < kTileSlots; j += lanes) {
    VF w = hn::Zero(d);
    if (j < n_visible) {
      w = Exp2(d, hn::Sub(hn::Load(d, weights + j), reference));
      sum = hn::Add(sum, w);
    }
    hn::Store(w, d, weights + j);
  }
  span.sum[row] += hn::ReduceSum(d, sum);
}

void AddValues(const AttentionSpan& span, uint32_t n_slots,
               const SpanScratch& scratch) {
  const size_t panel = GemmCols();
  const size_t head_values = PaddedCols(span.v_head_dim, panel) * kTileSlots;
  for (size_t head = 0; head < span.n_kv_heads; ++head) {
    const size_t begin = head * span.rows_per_head();
    const size_t end = begin + span.rows_per_head();
    for (size_t e = 0; e < span.v_head_dim; e += panel) {
      for (size_t row = begin; row < end; row += kGemmRows) {
        Multiply({.a = scratch.weights + row * kTileSlots,
                  .a_stride = kTileSlots,
                  .b = scratch.values + head * head_values + e * kTileSlots,
                  .b_stride = panel,
                  .c = span.out + row * span.v_head_dim + e,
                  .c_stride = span.v_head_dim,
                  .n_inner = n_slots,
                  .n_rows = std::min(kGemmRows, end - row),
                  .n_cols = std::min<size_t>(panel, span.v_head_dim - e),
                  .accumulate = true});
      }
    }
  }
}

// Weights get base-2 logits: exp2 is what the vector code computes.
void PackQueries(const AttentionSpan& span, float* queries) {
  const float scale = span.scale * 1.44269504088896341f;
  // The heads of a group lie side by side.
  const size_t n = size_t{span.group_size} * span.k_head_dim;
  for (uint32_t head = 0; head < span.n_kv_heads; ++head) {
    for (uint32_t query = 0; query < span.n_queries; ++query) {
      const float* from = span.queries + query * span.query_stride + head * n;
      for (size_t e = 0; e < n; ++e) *queries++ = from[e] * scale;
    }
  }
}

template <typename T>
void AttendSpanOf(const AttentionSpan& span) {
  const uint32_t n_rows = span.n_rows();
  const SpanScratch scratch = ThreadScratch(span, GemmCols());
  PackQueries(span, scratch.queries);
  std::fill_n(span.max, n_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(span.sum, n_rows, 0.0f);
  std::fill_n(span.out, size_t{n_rows} * span.v_head_dim, 0.0f);
  for (uint32_t slot = span.first_slot; slot < span.last_slot;
       slot += kTileSlots) {
    const uint32_t n_slots = std::min(kTileSlots, span.last_slot - slot);
    if (span.rows_per_head() >= kRowsToTranspose) {
      for (uint32_t head = 0; head < span.n_kv_heads; ++head) {
        PackKeys<T>(span, head, slot, n_slots, scratch.keys);
        MultiplyKeys(span, head, scratch);
      }
    } else {
      DotKeys<T>(span, slot, n_slots, scratch);
    }
    for (uint32_t row = 0; row < n_rows; ++row) {
      const uint32_t query = row / span.group_size % span.n_queries;
      const uint32_t n_visible =
          std::clamp(span.n_visible[query], slot, slot + n_slots) - slot;
      float* weights = scratch.weights + size_t{row} * kTileSlots;
      if (n_visible == 0) {
        std::fill_n(weights, kTileSlots, 0.0f);
      } else {
        SoftmaxRow(span, row, n_visible, weights);
      }
    }
    PackValues<T>(span, slot, n_slots, scratch.values);
    AddValues(span, n_slots, scratch);
  }
}

void AttendSpanTarget(const AttentionSpan& span) {
  switch (span.dtype) {
    case KVEVICT_DTYPE_F16:
      return AttendSpanOf<hwy::float16_t>(span);
    case KVEVICT_DTYPE_BF16:
      return AttendSpanOf<hwy::bfloat16_t>(span);
    case KVEVICT_DTYPE_F32:
      return AttendSpanOf<float>(span);
    case KVEVICT_DTYPE_OPAQUE:
      return;  // engines' caches are none
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvevict::tools
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict::tools {

SpanScratch ThreadScratch(const AttentionSpan& span, size_t panel) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> memory;
  thread_local size_t capacity = 0;
  // Parts start on cache lines.
  const auto line = [](size_t n) { return (n + 15) / 16 * 16; };
  const size_t queries = line(size_t{span.n_rows()} * span.k_head_dim);
  const size_t keys = size_t{kTileSlots} * span.k_head_dim;
  const size_t values =
      span.n_kv_heads * PaddedCols(span.v_head_dim, panel) * kTileSlots;
  const size_t weights = size_t{span.n_rows()} * kTileSlots;
  const size_t needed = queries + keys + values + weights;
  if (needed > capacity) {
    memory = hwy::AllocateAligned<float>(needed);
    capacity = needed;
  }
  float* base = memory.get();
  return {base, base + queries, base + queries + keys,
          base + queries + keys + values};
}

HWY_EXPORT(AttendSpanTarget);

void AttendSpan(const AttentionSpan& span) {
  HWY_DYNAMIC_DISPATCH(AttendSpanTarget)(span);
}

}  // namespace kvevict::tools
#endif  // HWY_ONCE
