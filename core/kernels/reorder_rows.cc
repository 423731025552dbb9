#include "core/kernels/reorder_rows.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reorder_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/copy_row-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// The row that a move writes.
HWY_INLINE int32_t RowOf(int32_t move) { return move < 0 ? ~move : move; }

// Moves one piece of every row.
void ReorderPiece(const ReorderRowsArgs& a) {
  const uint32_t ahead = RowsAhead(a.row_bytes);
  const int32_t n_moves = a.moves[0];
  const int32_t* moves = a.moves + 1;
  int32_t saved = -1;  // the row that is in saved_row
  for (int32_t m = 0; m < n_moves; ++m) {
    if (m + int64_t{ahead} < n_moves) {
      const int32_t later = RowOf(moves[m + ahead]);
      PrefetchRow(a.rows.Row(a.slots[later]), a.row_bytes);
    }
    const int32_t to = RowOf(moves[m]);
    uint8_t* row = Writable(a.rows.Row(to));
    if (moves[m] < 0) {
      saved = to;
      CopyRow(a.saved_row, row, a.row_bytes);
    }
    const int32_t from = a.slots[to];
    CopyRow(row, from == saved ? a.saved_row : a.rows.Row(from), a.row_bytes);
  }
}

void ReorderRowsInPlace(const ReorderRowsArgs& args) {
  ReorderRowsArgs piece = args;
  for (uint32_t e = 0; e < args.n_elements; ++e) {
    piece.rows = args.Piece(e);
    ReorderPiece(piece);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(ReorderRowsInPlace);

void OrderMoves(const int32_t* slots, uint32_t n, int32_t* moves) {
  const auto count = static_cast<int32_t>(n);
  int32_t* const order = moves + 1;
  int32_t* const n_readers = order + n;  // readers that have not moved yet
  std::fill_n(n_readers, n, 0);
  for (int32_t i = 0; i < count; ++i) {
    if (slots[i] != i && slots[i] < count) ++n_readers[slots[i]];
  }
  int32_t n_moves = 0;
  // Follows paths: from a row that nobody reads to the row it reads, which may
  // then have no readers left. A path never starts at a row with readers; once
  // these have moved, the last of them continues with it.
  const auto is_free = [&](int32_t i) {
    return i < count && slots[i] != i && n_readers[i] == 0;
  };
  constexpr int32_t kMoved = -1;
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t to = i; is_free(to);) {
      order[n_moves++] = to;
      n_readers[to] = kMoved;
      to = slots[to];
      if (to < count) --n_readers[to];
    }
  }
  // Each remaining row has at least one reader, and there are as many readers
  // as rows. So each has exactly one, and they form cycles.
  for (int32_t i = 0; i < count; ++i) {
    if (n_readers[i] <= 0) continue;
    order[n_moves++] = ~i;
    n_readers[i] = kMoved;
    for (int32_t to = slots[i]; to != i; to = slots[to]) {
      order[n_moves++] = to;
      n_readers[to] = kMoved;
    }
  }
  moves[0] = n_moves;
}

void ReorderRowsInPlace(SimdTarget simd, const ReorderRowsArgs& args) {
  KV_DISPATCH(simd, ReorderRowsInPlace)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
