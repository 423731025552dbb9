// Orders block tables in place: first the blocks that stay, then the others, in
// the order of core/cpu/drop_blocks.cc.
#include "drop_blocks.h"

#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

namespace {

// How many of the ascending numbers are below `end`.
KV_DEVICE uint32_t CountBelow(const uint32_t* numbers, uint32_t end) {
  uint32_t low = 0;
  uint32_t high = kDropThreads;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (numbers[middle] < end) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// In a tile a thread owns an entry, a block that stays, and an earlier dropped
// one that makes room. All are read before the first is written.
template <class Entry>
KV_DEVICE void DropBlocks(const TableLayer& layer, const CountTable& tokens,
                          const CountTable& keep_counts, uint32_t n_lists,
                          uint32_t keep_stride, uint32_t* stay) {
  const uint32_t table = blockIdx.x;
  if (table >= layer.n_tables) return;
  const uint32_t list = n_lists == 1 ? 0 : table;
  const uint32_t size = layer.block_size;
  const uint32_t n_tokens =
      CountOf(tokens, layer.first_token_count, table, layer.n_tokens);
  const uint32_t n_keep =
      CountOf(keep_counts, layer.first_keep_count, list, layer.n_keep);
  const uint32_t n =
      static_cast<uint32_t>((uint64_t{n_tokens} + size - 1) / size);
  const uint32_t n_stay =
      static_cast<uint32_t>((uint64_t{n_keep} + size - 1) / size);
  const uint64_t keep =
      layer.keep + uint64_t{list} *
                       (keep_stride == 0 ? layer.n_keep : keep_stride) *
                       sizeof(int32_t);
  const uint64_t entries = layer.entries + table * layer.stride * sizeof(Entry);
  const auto at = [&](uint32_t i) { return entries + i * sizeof(Entry); };
  const uint32_t thread = threadIdx.x;
  // kept in earlier tiles, followed by those dropped there
  uint32_t n_kept = 0;
  for (uint32_t tile = 0; tile < n; tile += kDropThreads) {
    const uint32_t i = tile + thread;
    const uint32_t kept = n_kept + thread;
    stay[thread] = kept < n_stay
                       ? LoadGlobal<uint32_t>(keep + uint64_t{kept} * size *
                                                         sizeof(int32_t)) /
                             size
                       : 0xffffffffu;
    Entry entry{};
    Entry dropped{};
    if (i < n) entry = LoadGlobal<Entry>(at(i));
    if (kept < tile) dropped = LoadGlobal<Entry>(at(kept));
    BlockSync();
    const uint32_t end = n - tile < kDropThreads ? n : tile + kDropThreads;
    const uint32_t n_here = CountBelow(stay, end);
    const uint32_t n_gap = tile - n_kept;
    const uint32_t n_first = n_here < n_gap ? n_here : n_gap;
    const uint32_t behind = n_here < n_gap ? tile : n_kept + n_here;
    if (i < n) {
      const uint32_t before = CountBelow(stay, i);
      const bool stays = before < n_here && stay[before] == i;
      StoreGlobal(
          at(stays ? n_kept + before : behind + n_first + thread - before),
          entry);
    }
    if (thread < n_first) StoreGlobal(at(behind + thread), dropped);
    n_kept += n_here;
    BlockSync();
  }
}

}  // namespace

// Grid (the most tables of any layer, n_layers). A block permutes a table, 512
// entries at a time. 2 KiB shared. Reads and writes entries once, and those
// that make room twice.
KV_KERNEL(drop_ids, DropBlocksParams, kDropThreads, 2) {
  KV_SHARED(uint32_t, stay, kDropThreads);
  DropBlocks<uint32_t>(p.layers[blockIdx.y], p.tokens, p.keep, p.n_lists,
                       p.keep_stride, stay);
}

KV_KERNEL(drop_addresses, DropBlocksParams, kDropThreads, 2) {
  KV_SHARED(uint32_t, stay, kDropThreads);
  DropBlocks<uint64_t>(p.layers[blockIdx.y], p.tokens, p.keep, p.n_lists,
                       p.keep_stride, stay);
}

}  // namespace kvevict::cuda
