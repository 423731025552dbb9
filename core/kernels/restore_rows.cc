#include "core/kernels/restore_rows.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/restore_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/copy_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Moves rows [begin, end) up by n rows, the last one first, so that a row is
// read before it is overwritten.
void MoveUp(const RowSource& rows, uint32_t row_bytes, uint32_t begin,
            uint32_t end, uint32_t n) {
  if (rows.block_size == 0 && rows.row_stride == int64_t{row_bytes}) {
    std::memmove(Writable(rows.Row(begin + n)), rows.Row(begin),
                 size_t{end - begin} * row_bytes);
    return;
  }
  const uint32_t ahead = RowsAhead(row_bytes);
  for (uint32_t i = end; i > begin; --i) {
    if (i - begin > ahead) PrefetchRow(rows.Row(i - 1 - ahead), row_bytes);
    CopyRow(Writable(rows.Row(i - 1 + n)), rows.Row(i - 1), row_bytes);
  }
}

// Restores one piece of every row, from the last row down to the first that was
// evicted.
void RestorePiece(const RestoreRowsArgs& a, const RowSource& rows,
                  const RowSource& saved) {
  const uint32_t row_bytes = a.rows.row_bytes;
  uint32_t end = a.n_rows;
  for (uint32_t n = a.n_evicted; n > 0; --n) {
    const auto slot = static_cast<uint32_t>(a.evicted[n - 1]);
    MoveUp(rows, row_bytes, slot + 1 - n, end - n, n);
    CopyRow(Writable(rows.Row(slot)), saved.Row(n - 1), row_bytes);
    end = slot;
  }
}

void RestoreRows(const RestoreRowsArgs& args) {
  for (uint32_t e = 0; e < args.rows.n_elements; ++e) {
    RestorePiece(args, args.rows.Piece(e), args.saved.Piece(e));
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(RestoreRows);

void RestoreRows(SimdTarget simd, const RestoreRowsArgs& args) {
  KV_DISPATCH(simd, RestoreRows)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
