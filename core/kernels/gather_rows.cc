#include "core/kernels/gather_rows.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gather_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/copy_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Rows of at least this size move as runs of adjacent survivors. For shorter
// rows the search does not pay.
constexpr uint32_t kRunRowBytes = 4096;

// Moves rows of the keep list from `begin` on, one by one.
void GatherEach(const GatherRowsArgs& a, const RowSource& from,
                const RowSource& to, uint32_t begin) {
  const uint32_t row_bytes = a.from.row_bytes;
  const uint32_t ahead = RowsAhead(row_bytes);
  for (uint32_t i = begin; i < a.n_keep; ++i) {
    if (i + ahead < a.n_keep) {
      PrefetchRow(from.Row(a.Kept(i + ahead)), row_bytes);
    }
    CopyRow(Writable(to.Row(a.first_row + i)), from.Row(a.Kept(i)), row_bytes);
  }
}

// Whether rows are contiguous.
bool LieEndToEnd(const MovedRows& rows) {
  return rows.rows.block_size == 0 &&
         rows.rows.row_stride == int64_t{rows.row_bytes};
}

// For long rows: a run of adjacent survivors moves as one block, while the
// beginning of the next run is prefetched; the hardware fetches the rest.
void GatherRuns(const GatherRowsArgs& a, const uint8_t* from, uint8_t* to,
                uint32_t begin) {
  const size_t bytes = a.from.row_bytes;
  to += a.first_row * bytes;
  for (uint32_t i = begin; i < a.n_keep;) {
    const uint32_t first = a.Kept(i);
    uint32_t run = 1;
    while (i + run < a.n_keep && a.Kept(i + run) == first + run) ++run;
    const uint32_t next = i + run;
    if (next < a.n_keep) {
      PrefetchRow(from + a.Kept(next) * bytes, 4 * kCacheLine);
    }
    std::memmove(to + i * bytes, from + first * bytes, run * bytes);
    i = next;
  }
}

// Rows [0, begin) are in place already and not touched.
void GatherRows(const GatherRowsArgs& args, uint32_t begin) {
  const bool by_runs = args.from.row_bytes >= kRunRowBytes &&
                       LieEndToEnd(args.from) && LieEndToEnd(args.to);
  for (uint32_t e = 0; e < args.from.n_elements; ++e) {
    const RowSource from = args.from.Piece(e);
    const RowSource to = args.to.Piece(e);
    if (by_runs) {
      GatherRuns(args, from.base, Writable(to.base), begin);
    } else {
      GatherEach(args, from, to, begin);
    }
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(GatherRows);

void GatherRows(SimdTarget simd, const GatherRowsArgs& args) {
  uint32_t begin = 0;
  while (args.in_place && begin < args.n_keep &&
         args.keep[begin] == static_cast<int32_t>(args.first_row + begin)) {
    ++begin;
  }
  KV_DISPATCH(simd, GatherRows)(args, begin);
}

}  // namespace kvevict
#endif  // HWY_ONCE
