// Reorders rows in place: row keep[i] of a plane and head moves to row i.
//
// There are two launches. The first one copies the rows that the second one
// will overwrite, those from slots below n_keep, to the staged rows of their
// destinations. The second one reads these from there, and all others, which
// are never written, from the cache. So threads need not wait for each other.
#include "gather_rows.h"
#include "moved_rows.cuh"

namespace kvevict::cuda {

namespace {

// A column of the staged rows, [n_planes, n_heads, n_keep] packed rows.
struct StagedColumn {
  uint64_t base;
  uint64_t row_bytes;

  KV_DEVICE StagedColumn(const GatherParams& p, const Chunk& chunk,
                         uint32_t n_keep, uint64_t offset)
      : row_bytes(uint64_t{p.row_bytes} * p.n_pieces) {
    const uint64_t list = uint64_t{chunk.plane} * p.n_heads + chunk.head;
    base = p.scratch + list * n_keep * row_bytes + offset;
  }
  KV_DEVICE uint64_t Address(uint32_t row) const {
    return base + row * row_bytes;
  }
};

enum Step { kStage, kPlace };

// Does a thread's part of a step: all loads, then all stores.
template <class Unit, Step kStep, class Column>
KV_DEVICE void MoveRows(const Column& column, const StagedColumn& staged,
                        const ThreadRows& rows, uint64_t keep,
                        uint32_t n_keep) {
  uint32_t slots[kChunkLoads];
  uint64_t from[kChunkLoads];
  Unit moved[kChunkLoads];
  const auto moves = [&](uint32_t r, uint32_t i) {
    return slots[r] != i && (kStep == kPlace || slots[r] < n_keep);
  };
  rows.ForEach([&](uint32_t r, uint32_t i) {
    slots[r] = LoadGlobal<uint32_t>(keep + uint64_t{i} * sizeof(int32_t));
  });
  rows.ForEach([&](uint32_t r, uint32_t i) {
    from[r] = kStep == kPlace && slots[r] < n_keep
                  ? staged.Address(i)
                  : column.Address(column.Find(slots[r]));
  });
  rows.ForEach([&](uint32_t r, uint32_t i) {
    if (moves(r, i)) moved[r] = LoadGlobal<Unit>(from[r]);
  });
  rows.ForEach([&](uint32_t r, uint32_t i) {
    if (!moves(r, i)) return;
    const uint64_t to =
        kStep == kPlace ? column.Address(column.Find(i)) : staged.Address(i);
    StoreGlobal(to, moved[r]);
  });
}

// Grid (ChunkBlocks()). A block owns a chunk, a thread up to 8 rows of one
// column. A row is read and written once by each step that moves it.
template <class Unit, Step kStep>
KV_DEVICE void ReorderChunk(const GatherParams& p) {
  constexpr uint32_t kUnit = sizeof(Unit);
  const uint32_t n_columns = p.row_bytes / kUnit * p.n_pieces;
  const Chunk chunk(p, blockIdx.x);
  const GatherPlane& plane = p.planes[chunk.plane];
  const uint32_t row_step = p.rows_at_once;
  const uint32_t thread_row = threadIdx.x / p.columns_per_block;
  const uint32_t column =
      chunk.first_column + threadIdx.x % p.columns_per_block;
  if (thread_row >= row_step || column >= n_columns) return;

  const KeepList keep(p, plane, chunk.head);
  const ThreadRows rows = {chunk.first_row + thread_row, row_step, keep.n};
  const StagedColumn staged(p, chunk, plane.n_keep, uint64_t{column} * kUnit);
  WithColumn(RowsFrom(p, plane), {p, kUnit, chunk.head, column},
             [&](const auto& cache) {
               MoveRows<Unit, kStep>(cache, staged, rows, keep.slots, keep.n);
             });
}

}  // namespace

KV_KERNEL(reorder_stage_16, GatherParams, kChunkThreads, 2) {
  ReorderChunk<Bytes16, kStage>(p);
}
KV_KERNEL(reorder_stage_4, GatherParams, kChunkThreads, 2) {
  ReorderChunk<uint32_t, kStage>(p);
}
KV_KERNEL(reorder_stage_1, GatherParams, kChunkThreads, 2) {
  ReorderChunk<uint8_t, kStage>(p);
}

KV_KERNEL(reorder_place_16, GatherParams, kChunkThreads, 2) {
  ReorderChunk<Bytes16, kPlace>(p);
}
KV_KERNEL(reorder_place_4, GatherParams, kChunkThreads, 2) {
  ReorderChunk<uint32_t, kPlace>(p);
}
KV_KERNEL(reorder_place_1, GatherParams, kChunkThreads, 2) {
  ReorderChunk<uint8_t, kPlace>(p);
}

}  // namespace kvevict::cuda
