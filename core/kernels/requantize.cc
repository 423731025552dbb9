#include "core/kernels/requantize.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/requantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/quantize-inl.h"
#include "core/dtypes/quantize_four-inl.h"
#include "core/kernels/copy_row-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

HWY_INLINE bool AreAligned(const RowSource& rows, size_t alignment) {
  const auto all = reinterpret_cast<uintptr_t>(rows.base) |
                   static_cast<uintptr_t>(rows.row_stride) |
                   static_cast<uintptr_t>(rows.block_stride);
  return rows.is_plain && all % alignment == 0;
}

// Whether rows of `to` are packed floats of whole vectors.
HWY_INLINE bool TakesVectors(const RowSource& to, size_t alignment) {
  return to.dtype == DType::kF32 && to.IsPacked(sizeof(float)) &&
         to.n_elements <= kRowPart && to.n_elements % kRowPad == 0 &&
         AreAligned(to, alignment);
}

// row = buffer, written past the caches.
HWY_INLINE void StreamRow(const float* HWY_RESTRICT buffer, size_t n,
                          float* HWY_RESTRICT row) {
  const RowTag df;
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    hn::Stream(hn::Load(df, buffer + i), df, row + i);
  }
}

// A row of a head, and the row to which it goes.
struct RowMove {
  uint32_t head, from_row, to_row;
};

// Stores a few rows together.
class Step {
 public:
  explicit Step(const RequantizeRowsArgs& args)
      : a_(args),
        encodes_(kHasQuantized && InfoOf(args.to[0].dtype).is_quantized()),
        streams_(args.streams),
        streams_codes_(args.streams) {
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      streams_ = streams_ && TakesVectors(a_.to[h], kCacheLine);
      decodes_ = decodes_ && TakesVectors(a_.to[h], alignof(float));
      goes_by_four_ = goes_by_four_ && CodesFour(a_.to[h]);
      streams_codes_ = streams_codes_ && AreAligned(a_.to[h], 16);
    }
  }
  ~Step() {
    if (a_.streams) hwy::FlushStream();
  }
  Step(const Step&) = delete;

  // Whether rows become floats, which are written while they are read.
  bool decodes() const { return decodes_; }
  void Decode(const RowMove& move) {
    const RowSource& from = a_.from[move.head];
    const size_t n = from.n_elements;
    auto* const row = reinterpret_cast<float*>(
        const_cast<uint8_t*>(a_.to[move.head].Row(move.to_row)));
    LoadRow(from, move.from_row, 0, n, streams_ ? buffers_[0] : row);
    if (streams_) StreamRow(buffers_[0], n, row);
  }

  // n <= kFour.
  void Store(const RowMove* moves, uint32_t n) {
    FloatRow rows[kFour];
    for (uint32_t i = 0; i < n; ++i) {
      rows[i] =
          FloatRow(a_.from[moves[i].head], moves[i].from_row, buffers_[i]);
    }
    if (!encodes_) return Convert(moves, rows, n);
    if constexpr (kHasQuantized) {
      if (n == kFour && goes_by_four_ && EncodeFour(moves, rows)) return;
      Encode(moves, rows, n);
    }
  }

 private:
  void Convert(const RowMove* moves, const FloatRow* rows, uint32_t n) const {
    for (uint32_t i = 0; i < n; ++i) {
      rows[i].ForEachPart(
          [&](const float* part, size_t first, size_t n_elements) HWY_ATTR {
            StoreRow(part, a_.to[moves[i].head], moves[i].to_row, first,
                     n_elements);
          });
    }
  }

  void Encode(const RowMove* moves, const FloatRow* rows, uint32_t n) const {
    RowCoder coders[kFour];
    for (uint32_t i = 0; i < n; ++i) {
      coders[i] = CoderOf(rows[i], a_.to[moves[i].head], moves[i].to_row);
    }
    for (uint32_t i = 0; i < n; ++i) {
      StoreQuantized(coders[i], rows[i], a_.to[moves[i].head], moves[i].to_row);
    }
  }

  bool EncodeFour(const RowMove* moves, const FloatRow* rows) const {
    FourRows four;
    four.streams = streams_codes_;
    for (uint32_t i = 0; i < kFour; ++i) {
      four.from[i] = rows[i].all();
      four.to[i] = &a_.to[moves[i].head];
      four.row[i] = moves[i].to_row;
    }
    return StoreFour(four, rows[0].size());
  }

  const RequantizeRowsArgs& a_;
  const bool encodes_;
  bool streams_, streams_codes_, decodes_ = true, goes_by_four_ = true;
  HWY_ALIGN float buffers_[kFour][kRowPart];
};

void RequantizeRowsOf(const RequantizeRowsArgs& a) {
  const auto bytes =
      static_cast<uint32_t>(PackedBytes(a.from[0].dtype, a.from[0].n_elements));
  const uint32_t ahead = std::max(1u, RowsAhead(bytes) / a.n_heads);
  const auto row_of = [&](uint32_t i) {
    return a.keep == nullptr ? i : static_cast<uint32_t>(a.keep[i]);
  };
  Step step(a);
  RowMove moves[kFour];
  uint32_t n = 0;
  for (uint32_t i = a.begin; i < a.end; ++i) {
    // The hardware prefetches adjacent survivors better.
    const bool is_far =
        i + ahead < a.end && row_of(i + ahead) != row_of(i) + ahead;
    for (uint32_t h = 0; is_far && h < a.n_heads; ++h) {
      PrefetchRow(a.from[h].Row(row_of(i + ahead)), bytes);
    }
    for (uint32_t h = 0; h < a.n_heads; ++h) {
      const RowMove move{h, row_of(i), a.first_row + i};
      if (step.decodes()) {
        step.Decode(move);
        continue;
      }
      moves[n++] = move;
      if (n < kFour) continue;
      step.Store(moves, n);
      n = 0;
    }
  }
  step.Store(moves, n);
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(RequantizeRowsOf);

void RequantizeRows(SimdTarget simd, const RequantizeRowsArgs& args) {
  KV_DISPATCH(simd, RequantizeRowsOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
