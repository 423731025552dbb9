#include "core/kernels/requantize.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/requantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/dtypes/quantize-inl.h"
#include "core/kernels/copy_row-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Whether rows of `to` are floats end to end, of whole vectors.
HWY_INLINE bool TakesVectors(const RowSource& to, size_t alignment) {
  const auto all = reinterpret_cast<uintptr_t>(to.base) |
                   static_cast<uintptr_t>(to.row_stride) |
                   static_cast<uintptr_t>(to.block_stride);
  return to.dtype == DType::kF32 && to.is_plain && to.IsPacked(sizeof(float)) &&
         to.n_elements <= kRowPart && to.n_elements % kRowPad == 0 &&
         all % alignment == 0;
}

// row = buffer, past the caches.
HWY_INLINE void StreamRow(const float* HWY_RESTRICT buffer, size_t n,
                          float* HWY_RESTRICT row) {
  const RowTag df;
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    hn::Stream(hn::Load(df, buffer + i), df, row + i);
  }
}

// Rows of several heads of one token.
class Step {
 public:
  explicit Step(const RequantizeRowsArgs& args) : a_(args) {
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      streams_ = streams_ && TakesVectors(a_.to[h], kCacheLine);
      decodes_ = decodes_ && TakesVectors(a_.to[h], alignof(float));
    }
    streams_ = streams_ && a_.streams;
  }
  ~Step() {
    if (streams_) hwy::FlushStream();
  }
  Step(const Step&) = delete;

  void Store(uint32_t from_row, uint32_t to_row) {
    if (decodes_) return Decode(from_row, to_row);
    FloatRow rows[kMostHeads];
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      rows[h] = FloatRow(a_.from[h], from_row, buffers_[h]);
    }
    if (InfoOf(a_.to[0].dtype).is_quantized()) {
      Encode(rows, to_row);
      return;
    }
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      rows[h].ForEachPart(
          [&](const float* part, size_t first, size_t n)
              HWY_ATTR { StoreRow(part, a_.to[h], to_row, first, n); });
    }
  }

 private:
  void Decode(uint32_t from_row, uint32_t to_row) {
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      const size_t n = a_.from[h].n_elements;
      auto* const row =
          reinterpret_cast<float*>(const_cast<uint8_t*>(a_.to[h].Row(to_row)));
      LoadRow(a_.from[h], from_row, 0, n, streams_ ? buffers_[0] : row);
      if (streams_) StreamRow(buffers_[0], n, row);
    }
  }
  void Encode(const FloatRow* rows, uint32_t to_row) const {
    RowCoder coders[kMostHeads];
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      coders[h] = CoderOf(rows[h], a_.to[h], to_row);
    }
    for (uint32_t h = 0; h < a_.n_heads; ++h) {
      StoreQuantized(coders[h], rows[h], a_.to[h], to_row);
    }
  }

  const RequantizeRowsArgs& a_;
  bool streams_ = true, decodes_ = true;
  HWY_ALIGN float buffers_[kMostHeads][kRowPart];
};

void RequantizeRowsOf(const RequantizeRowsArgs& a) {
  const auto bytes =
      static_cast<uint32_t>(PackedBytes(a.from[0].dtype, a.from[0].n_elements));
  const uint32_t ahead = std::max(1u, RowsAhead(bytes) / a.n_heads);
  const auto row_of = [&](uint32_t i) {
    return a.keep == nullptr ? i : static_cast<uint32_t>(a.keep[i]);
  };
  Step step(a);
  for (uint32_t i = a.begin; i < a.end; ++i) {
    // Where survivors follow each other, the hardware knows better.
    const bool is_far =
        i + ahead < a.end && row_of(i + ahead) != row_of(i) + ahead;
    for (uint32_t h = 0; is_far && h < a.n_heads; ++h) {
      PrefetchRow(a.from[h].Row(row_of(i + ahead)), bytes);
    }
    step.Store(row_of(i), a.first_row + i);
  }
}

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
