// Copies rows to another plane: row keep[i] of a plane and head to row
// first_slot + i of the other one, which may have any other layout. No row that
// is written is read, so no thread waits for another.
#include "gather_rows.h"
#include "moved_rows.cuh"

namespace kvevict::cuda {

namespace {

// Copies a thread's rows: all loads, then all stores.
template <class Unit, class From, class To>
KV_DEVICE void CopyColumn(const From& from_column, const To& to_column,
                          const ThreadRows& rows, uint64_t keep,
                          uint32_t first_slot) {
  uint32_t slots[kChunkLoads];
  typename From::Place from[kChunkLoads];
  Unit copied[kChunkLoads];
  rows.ForEach([&](uint32_t r, uint32_t i) {
    slots[r] = keep == 0
                   ? i
                   : LoadGlobal<uint32_t>(keep + uint64_t{i} * sizeof(int32_t));
  });
  rows.ForEach(
      [&](uint32_t r, uint32_t) { from[r] = from_column.Find(slots[r]); });
  rows.ForEach([&](uint32_t r, uint32_t) {
    copied[r] = LoadGlobal<Unit>(from_column.Address(from[r]));
  });
  rows.ForEach([&](uint32_t r, uint32_t i) {
    StoreGlobal(to_column.Address(to_column.Find(first_slot + i)), copied[r]);
  });
}

// Grid (ChunkBlocks()). A block owns a chunk, a thread up to 8 rows of one
// column. Reads and writes every kept row once.
template <class Unit>
KV_DEVICE void CopyChunk(const GatherParams& p) {
  constexpr uint32_t kUnit = sizeof(Unit);
  const uint32_t n_columns = p.row_bytes / kUnit * p.n_pieces;
  const Chunk chunk(p, blockIdx.x);
  const GatherPlane& plane = p.planes[chunk.plane];
  const uint32_t row_step = p.rows_at_once;
  const uint32_t thread_row = threadIdx.x / p.columns_per_block;
  const uint32_t i = chunk.first_column + threadIdx.x % p.columns_per_block;
  if (thread_row >= row_step || i >= n_columns) return;

  const KeepList keep(p, plane, chunk.head);
  const ThreadRows rows = {chunk.first_row + thread_row, row_step, keep.n};
  const ColumnOfHead column(p, kUnit, chunk.head, i);
  const PlaneRows from_rows = RowsFrom(p, plane);
  const PlaneRows to_rows = RowsTo(p, plane);
  const auto copy = [&](const auto& from, const auto& to) {
    CopyColumn<Unit>(from, to, rows, keep.slots, plane.first_slot);
  };
  if (p.rows.far != 0 || p.to.far != 0) {
    copy(AnyColumn(from_rows, column.head, column.Offset(p.rows)),
         AnyColumn(to_rows, column.head, column.Offset(p.to)));
    return;
  }
  WithPlainColumn(from_rows, column, [&](const auto& from) {
    WithPlainColumn(to_rows, column, [&](const auto& to) { copy(from, to); });
  });
}

}  // namespace

KV_KERNEL(copy_rows_16, GatherParams, kChunkThreads, 2) {
  CopyChunk<Bytes16>(p);
}
KV_KERNEL(copy_rows_4, GatherParams, kChunkThreads, 2) {
  CopyChunk<uint32_t>(p);
}
KV_KERNEL(copy_rows_1, GatherParams, kChunkThreads, 2) {
  CopyChunk<uint8_t>(p);
}

}  // namespace kvevict::cuda
