// Reverts compaction in place: saved row i goes to row keep[i], and the rows of
// the cache fill the other slots in their order.
//
// `keep` are the slots that were evicted, and `to` is the contiguous plane of
// their rows. After the last slot of a list stands how many slots it had; a
// plane's first_slot more are in use since. A row comes from its own slot or a
// lower one. So going from the last row down, nothing is overwritten before it
// is read.
#include "gather_rows.h"
#include "moved_rows.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kNone = 0xffffffffu;

// Walks a column downward, many rows at a time: first their loads, then their
// stores. Rows before the first evicted slot stay in place.
template <class Unit, class Column>
KV_DEVICE void WalkBack(const Column& column, const ContiguousColumn& saved,
                        uint64_t evicted, uint32_t n_evicted, uint32_t slot) {
  constexpr uint32_t kRows = ColumnRows(sizeof(Unit), true);
  const auto load = [&](uint32_t n) {
    return n == 0 ? kNone
                  : LoadGlobal<uint32_t>(evicted +
                                         uint64_t{n - 1} * sizeof(int32_t));
  };
  uint32_t next = load(n_evicted);  // the last evicted slot that is left
  while (n_evicted > 0) {
    Unit moved[kRows];
    uint32_t to[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      to[r] = kNone;
      if (n_evicted == 0) continue;
      to[r] = --slot;
      if (slot == next) {
        moved[r] = LoadGlobal<Unit>(saved.Address(--n_evicted));
        next = load(n_evicted);
      } else {
        moved[r] =
            LoadGlobal<Unit>(column.Address(column.Find(slot - n_evicted)));
      }
    }
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      if (to[r] == kNone) continue;
      StoreGlobal(column.Address(column.Find(to[r])), moved[r]);
    }
  }
}

// Grid (columns of all heads / 32, n_planes). A thread owns a column, so no
// thread waits for another. Reads and writes every row from the first evicted
// one on once.
template <class Unit>
KV_DEVICE void RestoreColumn(const GatherParams& p) {
  constexpr uint32_t kUnit = sizeof(Unit);
  const GatherPlane& plane = p.planes[blockIdx.y];
  const uint32_t n_columns = p.row_bytes / kUnit * p.n_pieces;
  const uint32_t i = blockIdx.x * kColumnThreads + threadIdx.x;
  const uint32_t head = i / n_columns;
  if (head >= p.n_heads) return;
  const KeepList evicted(p, plane, head);
  if (evicted.n == 0) return;
  const uint32_t n_slots =
      LoadGlobal<uint32_t>(ElementAt(evicted.slots, evicted.n)) +
      plane.first_slot;
  const ColumnOfHead column(p, kUnit, head, i % n_columns);
  const ContiguousColumn saved(RowsTo(p, plane), head, column.Offset(p.to));
  WithColumn(RowsFrom(p, plane), column, [&](const auto& cache) {
    WalkBack<Unit>(cache, saved, evicted.slots, evicted.n, n_slots);
  });
}

}  // namespace

KV_KERNEL(restore_columns_16, GatherParams, kColumnThreads, 1) {
  RestoreColumn<Bytes16>(p);
}
KV_KERNEL(restore_columns_4, GatherParams, kColumnThreads, 1) {
  RestoreColumn<uint32_t>(p);
}
KV_KERNEL(restore_columns_1, GatherParams, kColumnThreads, 1) {
  RestoreColumn<uint8_t>(p);
}

}  // namespace kvevict::cuda
