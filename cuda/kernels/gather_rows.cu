// Compaction in place: row keep[i] of a plane and head moves to row first_slot
// + i.
//
// Keep lists are strictly ascending, so keep[i] >= first_slot + i. Rows read
// for index i and later are at first_slot + i or above; rows written for
// earlier indices are below that. So a write never overwrites what a later
// index reads, and the only rule is that all reads of some indices come before
// their writes. Lists in another order must not be used here.
#include "gather_rows.h"

#include "moved_rows.cuh"

namespace kvevict::cuda {

namespace {

// ---- By columns ----

KV_DEVICE uint32_t AtMost(uint32_t i, uint32_t most) {
  return i < most ? i : most;
}

// Finds the places of the survivors from the i-th on; past the last one, the
// last one again.
template <class Column, uint32_t kRows>
KV_DEVICE void FindSurvivors(const Column& column, uint64_t keep, uint32_t i,
                             uint32_t last,
                             typename Column::Place (&from)[kRows]) {
  uint32_t slots[kRows];
#pragma unroll
  for (uint32_t r = 0; r < kRows; ++r) {
    slots[r] = LoadGlobal<uint32_t>(keep + uint64_t{AtMost(i + r, last)} *
                                               sizeof(int32_t));
  }
#pragma unroll
  for (uint32_t r = 0; r < kRows; ++r) from[r] = column.Find(slots[r]);
}

// Walks a column upward, many rows at a time: first their loads, then their
// stores. While the loads are in flight it looks up the next rows.
template <class Unit, class Column>
KV_DEVICE void WalkColumn(const Column& column, uint64_t keep, uint32_t n_keep,
                          uint32_t first_slot) {
  constexpr uint32_t kRows = ColumnRows(sizeof(Unit), Column::kIsPaged);
  const uint32_t last = n_keep - 1;
  typename Column::Place from[kRows], to[kRows];
  FindSurvivors(column, keep, 0, last, from);
  for (uint32_t i = 0; i < n_keep; i += kRows) {
    Unit moved[kRows];
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      moved[r] = LoadGlobal<Unit>(column.Address(from[r]));
    }
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      to[r] = column.Find(first_slot + AtMost(i + r, last));
    }
    FindSurvivors(column, keep, i + kRows, last, from);
#pragma unroll
    for (uint32_t r = 0; r < kRows; ++r) {
      StoreGlobal(column.Address(to[r]), moved[r]);
    }
  }
}

template <class Unit>
KV_DEVICE void GatherColumn(const GatherParams& p) {
  constexpr uint32_t kUnit = sizeof(Unit);
  const GatherPlane& plane = p.planes[blockIdx.y];
  const uint32_t n_columns = p.row_bytes / kUnit * p.n_pieces;
  const uint32_t i = blockIdx.x * kColumnThreads + threadIdx.x;
  const uint32_t head = i / n_columns;
  if (head >= p.n_heads) return;
  const KeepList keep(p, plane, head);
  if (keep.n == 0) return;
  WithColumn(RowsFrom(p, plane), {p, kUnit, head, i % n_columns},
             [&](const auto& column) {
               WalkColumn<Unit>(column, keep.slots, keep.n, plane.first_slot);
             });
}

}  // namespace

// Grid (columns of all heads / 32, n_planes). A thread owns a column, so no
// thread waits for another. 9,216 threads with 32 rows of 16 bytes each have
// 4.7 MB in flight. Reads and writes every kept row once.
KV_KERNEL(gather_columns_16, GatherParams, kColumnThreads, 1) {
  GatherColumn<Bytes16>(p);
}
KV_KERNEL(gather_columns_4, GatherParams, kColumnThreads, 1) {
  GatherColumn<uint32_t>(p);
}
KV_KERNEL(gather_columns_1, GatherParams, kColumnThreads, 1) {
  GatherColumn<uint8_t>(p);
}

// ---- By chunks ----

namespace {

// Waits until the earlier chunks that read where this one writes have read.
// They drew lower tickets, so they run already, and they wait for nobody before
// they say so. Therefore no block waits for ever, however few run at once.
KV_DEVICE void WaitForReaders(const Chunk& chunk, uint32_t first_slot,
                              uint64_t keep, uint64_t own_flag) {
  const uint32_t begin = first_slot + chunk.first_row;
  const uint32_t end = begin + chunk.n_rows;
  for (uint32_t c = threadIdx.x; c < chunk.index; c += kChunkThreads) {
    const uint64_t first = keep + uint64_t{c} * chunk.n_rows * sizeof(int32_t);
    const uint64_t last = first + (chunk.n_rows - 1) * sizeof(int32_t);
    if (LoadGlobal<uint32_t>(first) >= end ||
        LoadGlobal<uint32_t>(last) < begin) {
      continue;
    }
    const uint64_t flag =
        own_flag - uint64_t{chunk.index - c} * chunk.n_streams * 4;
    while (LoadAcquire(flag) == 0) SpinYield();
  }
  BlockSync();
}

// A register that a load writes.
template <class Unit>
KV_DEVICE uint32_t RegisterOf(const Unit& v) {
  if constexpr (sizeof(Unit) == 16) {
    return v.x[0];
  } else {
    return static_cast<uint32_t>(v);
  }
}

// Loads a thread's rows, raises the flag, waits, and stores them. A thread
// without rows takes part in the barriers.
//
// A load is in flight until a register of it is read. A barrier alone would let
// its thread pass, and then the flag would be up while another block's stores
// could still overtake the load. So the barrier before the flag depends on all
// loads.
template <class Unit, class Column>
KV_DEVICE void MoveChunk(const Column& column, const Chunk& chunk,
                         const ThreadRows& rows, uint32_t first_slot,
                         uint64_t keep, uint64_t flag) {
  Unit moved[kChunkLoads];
  uint32_t slots[kChunkLoads];
  typename Column::Place places[kChunkLoads];
  rows.ForEach([&](uint32_t r, uint32_t i) {
    slots[r] = LoadGlobal<uint32_t>(keep + uint64_t{i} * sizeof(int32_t));
  });
  rows.ForEach(
      [&](uint32_t r, uint32_t) { places[r] = column.Find(slots[r]); });
  rows.ForEach([&](uint32_t r, uint32_t) {
    moved[r] = LoadGlobal<Unit>(column.Address(places[r]));
  });
  uint32_t read = 0;
  rows.ForEach([&](uint32_t r, uint32_t) { read |= RegisterOf(moved[r]); });
  const bool any = BlockAny(read != 0);
  if (threadIdx.x == 0) StoreRelease(flag, any ? 1 : 2);
  rows.ForEach(
      [&](uint32_t r, uint32_t i) { places[r] = column.Find(first_slot + i); });
  WaitForReaders(chunk, first_slot, keep, flag);
  rows.ForEach([&](uint32_t r, uint32_t) {
    StoreGlobal(column.Address(places[r]), moved[r]);
  });
}

KV_DEVICE uint32_t DrawTicket(const GatherParams& p) {
  KV_SHARED(uint32_t, ticket, 1);
  if (threadIdx.x == 0) *ticket = AtomicAddGlobal(p.scratch, 1);
  BlockSync();
  return *ticket;
}

// Grid (ChunkBlocks()). A block owns the chunk of its ticket, a thread up to 8
// rows of one column. 32 KB of rows per block are in registers; the only
// workspace are the flags. Reads and writes every kept row once.
template <class Unit>
KV_DEVICE void GatherChunk(const GatherParams& p) {
  constexpr uint32_t kUnit = sizeof(Unit);
  const uint32_t n_columns = p.row_bytes / kUnit * p.n_pieces;
  const uint32_t ticket = DrawTicket(p);
  const Chunk chunk(p, ticket);
  const GatherPlane& plane = p.planes[chunk.plane];
  const KeepList keep(p, plane, chunk.head);
  if (chunk.first_row >= keep.n) return;

  const uint32_t row_step = p.rows_at_once;
  const uint32_t thread_row = threadIdx.x / p.columns_per_block;
  const uint32_t column =
      chunk.first_column + threadIdx.x % p.columns_per_block;
  const bool is_idle = thread_row >= row_step || column >= n_columns;
  const ThreadRows rows = {chunk.first_row + thread_row, row_step,
                           is_idle ? 0 : keep.n};
  const uint64_t flag = p.scratch + (1 + uint64_t{ticket}) * sizeof(uint32_t);
  WithColumn(RowsFrom(p, plane), {p, kUnit, chunk.head, column},
             [&](const auto& cache) {
               MoveChunk<Unit>(cache, chunk, rows, plane.first_slot, keep.slots,
                               flag);
             });
}

}  // namespace

KV_KERNEL(gather_chunks_16, GatherParams, kChunkThreads, 2) {
  GatherChunk<Bytes16>(p);
}
KV_KERNEL(gather_chunks_8, GatherParams, kChunkThreads, 2) {
  GatherChunk<uint64_t>(p);
}
KV_KERNEL(gather_chunks_4, GatherParams, kChunkThreads, 2) {
  GatherChunk<uint32_t>(p);
}
KV_KERNEL(gather_chunks_2, GatherParams, kChunkThreads, 2) {
  GatherChunk<uint16_t>(p);
}
KV_KERNEL(gather_chunks_1, GatherParams, kChunkThreads, 2) {
  GatherChunk<uint8_t>(p);
}

}  // namespace kvevict::cuda
