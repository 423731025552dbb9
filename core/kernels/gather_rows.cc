#include "core/kernels/gather_rows.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gather_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per target.
#include "core/kernels/copy_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Rows from here on move as runs of adjacent survivors; shorter ones do not pay
// for the search.
constexpr uint32_t kRunRowBytes = 4096;

// Rows [begin, end) of the keep list, one by one.
void GatherEach(const GatherRowsArgs& a, uint32_t begin, uint32_t end) {
  const uint32_t ahead = RowsAhead(a.row_bytes);
  for (uint32_t i = begin; i < end; ++i) {
    if (i + ahead < a.n_keep) {
      PrefetchRow(a.rows.Row(a.keep[i + ahead]), a.row_bytes);
    }
    CopyRow(Writable(a.rows.Row(i)), a.rows.Row(a.keep[i]), a.row_bytes);
  }
}

// Long rows that lie end to end: a run of adjacent survivors moves as one
// block, while the head of the next one starts coming; the hardware follows it.
void GatherRuns(const GatherRowsArgs& a, uint32_t begin) {
  const size_t bytes = a.row_bytes;
  uint8_t* base = Writable(a.rows.base);
  for (uint32_t i = begin; i < a.n_keep;) {
    uint32_t run = 1;
    while (i + run < a.n_keep &&
           a.keep[i + run] == a.keep[i] + static_cast<int32_t>(run)) {
      ++run;
    }
    const uint32_t next = i + run;
    if (next < a.n_keep) {
      PrefetchRow(base + a.keep[next] * bytes, 4 * kCacheLine);
    }
    std::memmove(base + i * bytes, base + a.keep[i] * bytes, run * bytes);
    i = next;
  }
}

// What is in place already, [0, begin), stays untouched.
void GatherRowsInPlace(const GatherRowsArgs& args, uint32_t begin) {
  GatherRowsArgs piece = args;
  for (uint32_t e = 0; e < args.n_elements; ++e) {
    const bool end_to_end = args.rows.block_size == 0 &&
                            args.rows.row_stride == int64_t{args.row_bytes};
    if (end_to_end && args.row_bytes >= kRunRowBytes) {
      GatherRuns(piece, begin);
    } else {
      GatherEach(piece, begin, args.n_keep);
    }
    piece.rows.base += args.element_stride_bytes;
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(GatherRowsInPlace);

void GatherRowsInPlace(SimdTarget simd, const GatherRowsArgs& args) {
  uint32_t begin = 0;
  while (begin < args.n_keep &&
         args.keep[begin] == static_cast<int32_t>(begin)) {
    ++begin;
  }
  KV_DISPATCH(simd, GatherRowsInPlace)(args, begin);
}

}  // namespace kvevict
#endif  // HWY_ONCE
