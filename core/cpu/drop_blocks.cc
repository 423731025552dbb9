// Orders block tables: first the blocks that stay, then the others.
#include <algorithm>

#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

// Orders a table of n entries; keep: a list of n_keep slots.
template <typename Entry>
void DropBlocks(Entry* const table, uint32_t n, uint32_t block_size,
                const int32_t* keep, uint32_t n_keep) {
  constexpr uint32_t kTile = DropBlocksArgs::kTile;
  const int32_t* const keep_end = keep + n_keep;
  // kept in earlier tiles, followed by those dropped there
  uint32_t n_kept = 0;
  for (uint32_t tile = 0; tile < n; tile += kTile) {
    const uint32_t end = std::min(n - tile, kTile) + tile;
    Entry kept[kTile];
    Entry dropped[kTile];
    uint32_t n_stay = 0;
    uint32_t n_go = 0;
    for (uint32_t i = tile; i < end; ++i) {
      const bool stays =
          keep < keep_end && static_cast<uint32_t>(*keep) / block_size == i;
      if (stays) keep += std::min<int64_t>(keep_end - keep, block_size);
      (stays ? kept[n_stay++] : dropped[n_go++]) = table[i];
    }
    const uint32_t n_first = std::min(n_stay, tile - n_kept);
    const uint32_t n_next = n_kept + n_stay;
    Entry* const behind = table + std::max(n_next, tile);
    std::copy_n(dropped, n_go, behind + n_first);
    std::copy_n(table + n_kept, n_first, behind);
    std::copy_n(kept, n_stay, table + n_kept);
    n_kept = n_next;
  }
}

Status RunDropBlocks(const Context&, Stream, const DropBlocksArgs& args) {
  for (const TableJob& job : args.jobs) {
    if (job.entries == nullptr) continue;
    const uint32_t size = job.view().block_size;
    const uint64_t stride = job.view().block_table_head_stride;
    const auto drop = [&](auto* entries) {
      for (uint32_t t = 0; t < job.n_tables(); ++t) {
        const uint64_t n = (uint64_t{job.move->tokens.Of(t)} + size - 1) / size;
        DropBlocks(entries + t * stride, static_cast<uint32_t>(n), size,
                   job.move->keep.ListOf(t), job.move->keep.CountOf(t));
      }
    };
    if (job.are_ids) {
      drop(static_cast<int32_t*>(job.entries));
    } else {
      drop(static_cast<uint64_t*>(job.entries));
    }
  }
  return Status();
}

}  // namespace

const Op<DropBlocksArgs> kOp_drop_blocks = {RunDropBlocks};

}  // namespace kvevict::cpu
