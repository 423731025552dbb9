// The layout of a plane's rows, and how threads share them.
#ifndef KVEVICT_CUDA_KERNELS_MOVED_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_MOVED_ROWS_CUH_

#include "counts.cuh"
#include "device.cuh"
#include "gather_rows.h"
#include "row_address.cuh"

namespace kvevict::cuda {

// Computes n / divisor for n < 2^31 by a product, since the hardware has no
// division.
struct Divider {
  uint32_t divisor;
  uint32_t factor;
  uint32_t shift;

  KV_DEVICE explicit Divider(uint32_t divisor) : divisor(divisor) {
    shift = 31 + 32 - CountLeadingZeros(divisor - 1);
    factor =
        static_cast<uint32_t>(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  KV_DEVICE uint32_t Divide(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * factor >> shift);
  }
};

// The address of element i of an i32 array.
KV_DEVICE uint64_t ElementAt(uint64_t array, int64_t i) {
  return array + static_cast<uint64_t>(i * int64_t{sizeof(int32_t)});
}

// The rows of a plane.
struct PlaneRows {
  const RowLayout& layout;
  uint64_t base;
  uint64_t table;
};
KV_DEVICE PlaneRows RowsFrom(const GatherParams& p, const GatherPlane& plane) {
  return {p.rows, plane.base, ElementAt(p.tables, plane.table)};
}
KV_DEVICE PlaneRows RowsTo(const GatherParams& p, const GatherPlane& plane) {
  return {p.to, plane.to, ElementAt(p.to_tables, plane.to_table)};
}

// The column of units that a thread moves. Finding a slot's place may take a
// load. It is separate from the address so that many places can be looked up
// together.
struct ContiguousColumn {
  static constexpr bool kIsPaged = false;
  using Place = uint32_t;

  uint64_t base;
  int64_t row_stride;

  KV_DEVICE ContiguousColumn(const PlaneRows& plane, uint32_t, uint64_t offset)
      : base(plane.base + offset), row_stride(plane.layout.row_stride) {}

  KV_DEVICE Place Find(uint32_t slot) const { return slot; }
  KV_DEVICE uint64_t Address(Place place) const {
    return base + static_cast<uint64_t>(place * row_stride);
  }
};

struct PagedColumn {
  static constexpr bool kIsPaged = true;
  struct Place {
    int32_t block;
    uint32_t row;
  };

  uint64_t base;
  int64_t row_stride;
  int64_t block_stride;
  uint64_t table;
  Divider block_size;

  KV_DEVICE PagedColumn(const PlaneRows& plane, uint32_t head, uint64_t offset)
      : base(plane.base + offset),
        row_stride(plane.layout.row_stride),
        block_stride(plane.layout.block_stride),
        table(ElementAt(plane.table,
                        uint64_t{head} * plane.layout.table_head_stride)),
        block_size(plane.layout.block_size) {}

  KV_DEVICE Place Find(uint32_t slot) const {
    const uint32_t i = block_size.Divide(slot);
    return {LoadGlobal<int32_t>(table + uint64_t{i} * sizeof(int32_t)),
            slot - i * block_size.divisor};
  }
  KV_DEVICE uint64_t Address(Place place) const {
    return base + static_cast<uint64_t>(place.block * block_stride +
                                        place.row * row_stride);
  }
};

// The same for any layout. A place is the row's address, found with a load or
// two.
struct AnyColumn {
  static constexpr bool kIsPaged = true;
  using Place = uint64_t;

  const RowLayout& layout;
  uint64_t base;
  uint64_t table;
  uint64_t offset;
  uint32_t head;
  Divider block_size;

  KV_DEVICE AnyColumn(const PlaneRows& plane, uint32_t head, uint64_t offset)
      : layout(plane.layout),
        base(plane.base),
        table(plane.table),
        offset(offset),
        head(head),
        block_size(plane.layout.block_size == 0 ? 1 : plane.layout.block_size) {
  }

  KV_DEVICE Place Find(uint32_t slot) const {
    if (layout.block_size == 0) {
      return base + offset + static_cast<uint64_t>(slot * layout.row_stride);
    }
    slot = RingRow(layout, slot);
    const uint32_t i = block_size.Divide(slot);
    const uint64_t block = FarBlock(layout, base, table, head, i);
    const int64_t row = (slot - i * block_size.divisor) * layout.row_stride;
    return block + offset + static_cast<uint64_t>(row);
  }
  KV_DEVICE uint64_t Address(Place place) const { return place; }
};

// A column of a head, and its place in the row of slot 0.
struct ColumnOfHead {
  uint32_t head;
  uint32_t piece;
  uint32_t byte;  // of the piece

  KV_DEVICE ColumnOfHead(const GatherParams& p, uint32_t unit, uint32_t head,
                         uint32_t column)
      : head(head) {
    const uint32_t units = p.row_bytes / unit;
    piece = column / units;
    byte = column % units * unit;
  }
  KV_DEVICE uint64_t Offset(const RowLayout& layout) const {
    return static_cast<uint64_t>(head * layout.head_stride +
                                 ElementOffset(layout, piece)) +
           byte;
  }
};

// Calls visit(column of those rows) for contiguous or paged rows, not for far
// ones.
template <class Visit>
KV_DEVICE void WithPlainColumn(const PlaneRows& rows,
                               const ColumnOfHead& column, const Visit& visit) {
  const uint64_t offset = column.Offset(rows.layout);
  if (rows.layout.block_size == 0) {
    visit(ContiguousColumn(rows, column.head, offset));
  } else {
    visit(PagedColumn(rows, column.head, offset));
  }
}

// The same for any rows.
template <class Visit>
KV_DEVICE void WithColumn(const PlaneRows& rows, const ColumnOfHead& column,
                          const Visit& visit) {
  if (rows.layout.far != 0) {
    visit(AnyColumn(rows, column.head, column.Offset(rows.layout)));
  } else {
    WithPlainColumn(rows, column, visit);
  }
}

// The slots that a head keeps.
struct KeepList {
  uint64_t slots;  // 0: 0, 1, ...
  uint32_t n;

  KV_DEVICE KeepList(const GatherParams& p, const GatherPlane& plane,
                     uint32_t head) {
    const uint32_t list = p.n_lists == 1 ? 0 : head;
    const uint32_t stride = p.keep_stride == 0 ? plane.n_keep : p.keep_stride;
    slots = p.keep == 0
                ? 0
                : ElementAt(p.keep, plane.keep + int64_t{list} * stride);
    n = CountOf(p.counts, plane.first_count, list, plane.n_keep);
  }
};

// ---- Rows of a column by chunks ----

// Some rows of some columns of a plane and head. Chunks are numbered such that
// a higher number has the same rows or later ones.
struct Chunk {
  uint32_t plane;
  uint32_t head;
  uint32_t first_column;
  uint32_t n_rows;
  uint32_t first_row;
  uint32_t index;      // index among chunks of the same columns
  uint32_t n_streams;  // distance of chunk numbers of the same columns

  KV_DEVICE Chunk(const GatherParams& p, uint32_t number) {
    n_streams = p.n_planes * p.n_heads * p.n_groups;
    const uint32_t stream = number % n_streams;
    index = number / n_streams;
    first_column = stream % p.n_groups * p.columns_per_block;
    head = stream / p.n_groups % p.n_heads;
    plane = stream / p.n_groups / p.n_heads;
    n_rows = p.rows_at_once * kChunkLoads;
    first_row = index * n_rows;
  }
};

// A thread's rows of one column: every row_step-th from first_row on, up to
// n_keep.
struct ThreadRows {
  uint32_t first_row;
  uint32_t row_step;
  uint32_t n_keep;

  // Calls visit(r, row) for the r-th row.
  template <class Visit>
  KV_DEVICE void ForEach(const Visit& visit) const {
#pragma unroll
    for (uint32_t r = 0; r < kChunkLoads; ++r) {
      const uint32_t row = first_row + r * row_step;
      if (row < n_keep) visit(r, row);
    }
  }
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_MOVED_ROWS_CUH_
