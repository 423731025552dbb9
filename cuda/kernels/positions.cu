// What the slots hold after an eviction, and how many there are: pairs {stored,
// logical}, one thread each.
#include "positions.h"

#include "device.cuh"
#include "slots.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint64_t LengthsOf(const LengthsParams& p, uint32_t i) {
  return p.lengths + (uint64_t{p.first_layer} + i) * 2 * sizeof(uint32_t);
}

}  // namespace

// The positions of the survivors: out[list][i] is the position of slot keep[i]
// before the eviction. `out` is not where they were listed before.
//
// Grid (n_keep / 256 of the longest list, n_lists, n_layers); a thread owns one
// survivor.
KV_KERNEL(map_positions, PositionsParams, kPositionsThreads, 1) {
  const PositionsLayer& layer = p.layers[blockIdx.z];
  const uint32_t list = blockIdx.y;
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= layer.n_keep) return;
  const uint64_t place = (uint64_t{list} * layer.n_keep + i) * sizeof(int32_t);
  uint32_t slot = i;
  if (layer.keep != 0) slot = LoadGlobal<uint32_t>(layer.keep + place);
  StoreGlobal(layer.out + place, PositionOf(layer.slots, list, slot));
}

KV_KERNEL(set_lengths, LengthsParams, kPositionsThreads, 1) {
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= p.n_layers) return;
  StoreGlobal(LengthsOf(p, i), p.stored[i]);
  StoreGlobal(LengthsOf(p, i) + 4, p.logical);
}

KV_KERNEL(advance_lengths, LengthsParams, kPositionsThreads, 1) {
  const uint32_t i = blockIdx.x * kPositionsThreads + threadIdx.x;
  if (i >= p.n_layers) return;
  for (uint32_t offset = 0; offset < 8; offset += 4) {
    const uint64_t length = LengthsOf(p, i) + offset;
    StoreGlobal(length, LoadGlobal<uint32_t>(length) + p.n_tokens);
  }
}

}  // namespace kvevict::cuda
