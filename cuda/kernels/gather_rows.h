// Chooses the form of gather_rows.cu to launch, its shape, and its scratch.
#ifndef KVEVICT_CUDA_KERNELS_GATHER_ROWS_H_
#define KVEVICT_CUDA_KERNELS_GATHER_ROWS_H_

#include "params.h"

namespace kvevict::cuda {

// Lists and tables are i32. Offsets count elements from those of the first
// plane.
struct GatherPlane {
  uint64_t base;        // slot 0, head 0
  uint64_t to;          // plane that rows go to; in place the same
  int32_t keep;         // [n_lists, keep stride]
  uint32_t n_keep;      // of the longest list
  int32_t first_count;  // index in GatherParams::counts
  uint32_t first_slot;  // where the first kept row goes
  int32_t table;        // of blocks; paged only
  int32_t to_table;
};
static_assert(sizeof(GatherPlane) == 40);

struct GatherParams {
  static constexpr uint32_t kMaxPlanes = 96;
  RowLayout rows;      // row_bytes are contiguous in a row and head
  RowLayout to;        // layout of `to`; in place the same
  uint32_t row_bytes;  // of one piece
  uint32_t n_pieces;   // element_stride apart; 1 for packed rows
  uint32_t n_heads;
  uint32_t n_lists;  // 1 or n_heads
  uint32_t n_planes;
  uint32_t keep_stride;  // elements from list to list; 0: the plane's n_keep
  // By chunks only: see DealChunks().
  uint32_t columns_per_block;
  uint32_t n_groups;      // blocks that share the columns of a plane and head
  uint32_t rows_at_once;  // rows of a block
  uint32_t reserved;
  CountTable counts;                 // per list
  uint64_t keep, tables, to_tables;  // of the first plane
  // gather_chunks: u32 [ChunkTickets()], zero before; reorder_*: packed rows,
  // [n_planes, n_heads, n_keep], with the same n_keep for all planes.
  uint64_t scratch;
  GatherPlane planes[kMaxPlanes];
};
static_assert(sizeof(GatherParams) <= 4096);

// A unit of 1, 2, 4, 8 or 16 bytes moves at a time. A column is the same unit
// of every row of a plane and head.
//
// gather_columns_<unit>, for units of 16, 4 and 1: a thread walks one column.
// Grid (ColumnBlocks(), n_planes).
constexpr uint32_t kColumnThreads = 32;  // small blocks spread evenly

// Rows of a column that are loaded at once; more would not fit in registers.
// Smaller units are used here only if there is no memory for tickets.
constexpr uint32_t ColumnRows(uint32_t unit, bool is_paged) {
  return unit < 16 ? 8 : is_paged ? 16 : 32;
}

// gather_chunks_<unit>: a block has some rows of some columns. Grid
// (ChunkBlocks()); with 0 blocks there is no launch.
constexpr uint32_t kChunkThreads = 256;
constexpr uint32_t kChunkLoads = 8;  // rows per thread

// The bitwise or of all strides that are used.
constexpr uint64_t StrideBits(const GatherParams& p, const RowLayout& rows) {
  auto all = static_cast<uint64_t>(rows.row_stride);
  if (p.n_heads > 1) all |= static_cast<uint64_t>(rows.head_stride);
  if (p.n_pieces > 1) {
    all |= static_cast<uint64_t>(rows.element_stride | rows.group_stride);
  }
  if (rows.block_size > 0) all |= static_cast<uint64_t>(rows.block_stride);
  return all;
}

// The largest unit that divides every address and length. Blocks with addresses
// begin at multiples of 16.
constexpr uint32_t GatherUnit(const GatherParams& p) {
  uint64_t all = 16 | p.row_bytes | StrideBits(p, p.rows) | StrideBits(p, p.to);
  for (uint32_t i = 0; i < p.n_planes; ++i) {
    if ((p.rows.far & kFarAddresses) == 0) all |= p.planes[i].base;
    if ((p.to.far & kFarAddresses) == 0) all |= p.planes[i].to;
  }
  return static_cast<uint32_t>(all & (~all + 1));
}

// The columns of one plane and head.
constexpr uint64_t ColumnsPerHead(const GatherParams& p, uint32_t unit) {
  return uint64_t{p.row_bytes} / unit * p.n_pieces;
}

// Whether columns alone, without tickets, keep the memory busy. They do if as
// many bytes are in flight as memory moves in its latency: 4 MiB for 4 TB/s and
// 1 us. It depends only on the shape, so results and workspace do too.
constexpr bool GatherByColumns(const GatherParams& p, uint32_t unit) {
  constexpr uint64_t kBytesOnTheirWay = uint64_t{4} << 20;
  return unit == 16 && p.n_planes * p.n_heads * ColumnsPerHead(p, 16) * 16 *
                               ColumnRows(16, p.rows.block_size > 0) >=
                           kBytesOnTheirWay;
}

constexpr uint32_t ColumnUnit(uint32_t unit) {
  return unit == 16 ? 16 : unit >= 4 ? 4 : 1;
}

constexpr uint32_t ColumnBlocks(const GatherParams& p, uint32_t unit) {
  return static_cast<uint32_t>(
      (p.n_heads * ColumnsPerHead(p, unit) + kColumnThreads - 1) /
      kColumnThreads);
}

// Columns are divided evenly among as few blocks as can take them.
constexpr uint32_t ChunkGroups(const GatherParams& p, uint32_t unit) {
  return static_cast<uint32_t>((ColumnsPerHead(p, unit) + kChunkThreads - 1) /
                               kChunkThreads);
}
constexpr uint32_t ChunkColumns(const GatherParams& p, uint32_t unit) {
  const uint32_t groups = ChunkGroups(p, unit);
  return static_cast<uint32_t>((ColumnsPerHead(p, unit) + groups - 1) / groups);
}

constexpr uint32_t ChunkRows(uint32_t columns_per_block) {
  return kChunkThreads / columns_per_block * kChunkLoads;
}

// Sets how the columns of a launch by chunks are divided.
constexpr void DealChunks(GatherParams* p, uint32_t unit) {
  p->columns_per_block = ChunkColumns(*p, unit);
  p->n_groups = ChunkGroups(*p, unit);
  p->rows_at_once = kChunkThreads / p->columns_per_block;
}

// n_keep is that of the longest list.
constexpr uint64_t ChunkBlocks(const GatherParams& p, uint32_t unit,
                               uint32_t n_keep) {
  const uint32_t rows = ChunkRows(ChunkColumns(p, unit));
  const uint32_t n_chunks = (n_keep + rows - 1) / rows;
  return uint64_t{n_chunks} * p.n_planes * p.n_heads * ChunkGroups(p, unit);
}

// u32 words at `scratch`: the next ticket, and a flag per block.
constexpr uint64_t ChunkTickets(uint64_t n_blocks) { return 1 + n_blocks; }

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_GATHER_ROWS_H_
