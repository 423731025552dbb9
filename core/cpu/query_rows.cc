#include "core/cpu/cpu.h"

namespace kvevict::cpu {

CheckedSize QueryTableBytes(uint32_t n_rows) {
  return (CheckedSize(n_rows) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

RowSource SourceOf(const QueryRows& queries, int32_t* table) {
  RowSource rows = queries.rows.Source();
  const uint32_t n_before_end = queries.ring_rows - queries.first_row;
  if (queries.n_rows <= n_before_end) {
    rows.base += int64_t{queries.first_row} * rows.row_stride;
    return rows;
  }
  for (uint32_t w = 0; w < queries.n_rows; ++w) {
    table[w] = static_cast<int32_t>(w < n_before_end ? queries.first_row + w
                                                     : w - n_before_end);
  }
  rows.block_size = 1;
  rows.block_table = table;
  rows.block_stride = rows.row_stride;
  return rows;
}

}  // namespace kvevict::cpu
