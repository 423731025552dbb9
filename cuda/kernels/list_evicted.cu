// Lists the slots that are not in keep lists, ascending, followed by the number
// of slots that the list held. Slot s is the e-th that is not kept if s - e
// kept slots come before it.
#include "list_evicted.h"

#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

// Grid (blocks for the most evicted of any list and one more, n_lists,
// n_layers). A thread owns a slot, and finds it in as many steps as the list's
// length has bits.
KV_KERNEL(list_evicted, EvictedParams, kEvictedThreads, 1) {
  const EvictedLayer& layer = p.layers[blockIdx.z];
  const uint32_t list = blockIdx.y;
  const uint32_t e = blockIdx.x * kEvictedThreads + threadIdx.x;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_token_count, list, layer.n_tokens);
  const uint32_t n_keep =
      CountOf(p.keep, layer.first_keep_count, list, layer.n_keep);
  const uint32_t n_evicted = n_tokens - n_keep;
  if (e > n_evicted) return;
  const uint32_t stride = p.keep_stride == 0 ? layer.n_keep : p.keep_stride;
  const uint64_t keep = layer.keep + uint64_t{list} * stride * sizeof(int32_t);
  uint32_t low = 0;
  uint32_t high = n_keep;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    const uint32_t slot =
        LoadGlobal<uint32_t>(keep + uint64_t{middle} * sizeof(int32_t));
    if (slot - middle <= e) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  StoreGlobal(
      layer.slots + (uint64_t{list} * layer.stride + e) * sizeof(int32_t),
      e == n_evicted ? n_tokens : e + low);
  if (e == 0 && layer.counts != 0) {
    StoreGlobal(layer.counts + uint64_t{list} * sizeof(uint32_t), n_evicted);
  }
}

}  // namespace kvevict::cuda
