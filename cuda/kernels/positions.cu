// Positions of slots after an eviction, and lengths: pairs {stored, logical},
// one thread each.
#include "positions.h"

#include "device.cuh"
#include "slots.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint64_t LengthsOf(const LengthsParams& p, uint32_t i) {
  return p.lengths + (uint64_t{p.first_list} + i) * 2 * sizeof(uint32_t);
}

KV_DEVICE uint64_t CountAt(const LengthsParams& p, uint32_t i) {
  return p.lengths + (uint64_t{p.first_list} + i) * sizeof(uint32_t);
}

}  // namespace

// Positions of the survivors: out[list][i] is the position of slot keep[i]
// before the eviction. `out` is not the list that is read.
//
// Grid (n_keep / 256 of the longest list, n_lists, n_layers). A thread owns one
// survivor.
KV_KERNEL(map_positions, PositionsParams, kPositionsThreads, 1) {
  const PositionsLayer& layer = p.layers[blockIdx.z];
  const uint32_t list = blockIdx.y;
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= CountOf(p.counts, layer.first_count, list, layer.n_keep)) return;
  uint32_t slot = i;
  if (layer.keep != 0) {
    const uint32_t stride = p.keep_stride == 0 ? layer.n_keep : p.keep_stride;
    slot = LoadGlobal<uint32_t>(layer.keep + (uint64_t{list} * stride + i) *
                                                 sizeof(int32_t));
  }
  StoreGlobal(layer.out + (uint64_t{list} * layer.n_keep + i) * sizeof(int32_t),
              PositionOf(layer.slots, p.kept, list, slot));
}

KV_KERNEL(set_lengths, LengthsParams, kPositionsThreads, 1) {
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= p.n_lists) return;
  StoreGlobal(LengthsOf(p, i), p.values[i]);
  StoreGlobal(LengthsOf(p, i) + 4, p.logical);
}

// Single counts, one thread each.
KV_KERNEL(advance_counts, LengthsParams, kPositionsThreads, 1) {
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= p.n_lists) return;
  const uint64_t count = CountAt(p, i);
  StoreGlobal(count, LoadGlobal<uint32_t>(count) + p.more);
}

KV_KERNEL(set_counts, LengthsParams, kPositionsThreads, 1) {
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= p.n_lists) return;
  StoreGlobal(CountAt(p, i), p.values[i]);
}

}  // namespace kvevict::cuda
