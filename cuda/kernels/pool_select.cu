// Pools and selects a list in one launch, if its keys fit in shared memory:
// scores are read once, and pooled ones are not written back. It uses the
// pooling of pool1d.cu and the selection of topk.cu, so the lists are the same.
#include "pool_select.h"
#include "topk.h"

#include "device.cuh"
#include "pool1d.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

using SelectTile = PoolTile<2, kMostSelectPoolKernel>;
static_assert(SelectTile::kWords == kPoolSelectWords);
static_assert(sizeof(SelectShared) <= SelectTile::kWords * sizeof(uint32_t));

}  // namespace

// Grid (n_lists, n_layers). A block has one list. PoolSelectBytes() shared:
// first a tile and its margin, later the counts of selection, followed by the
// keys. Reads every score once.
KV_KERNEL(pool_select, PoolSelectParams, kSelectThreads, 3) {
  KV_DYNAMIC_SHARED(memory);
  auto* const words = reinterpret_cast<uint32_t*>(memory);
  uint32_t* const keys = words + kPoolSelectWords;
  const SelectLayer& layer = p.layers[blockIdx.y];
  const uint32_t n = TokensOf(p.lists, layer, blockIdx.x);
  const uint32_t n_keep = KeepOf(p.lists, layer, blockIdx.x, n);
  if (n_keep == 0) return;
  const uint32_t n_pooled = n - p.n_unpooled;
  const uint32_t recent_begin = RecentBegin(p.lists, n);
  const auto put = [&](uint32_t i, uint32_t bits) {
    const bool forced = i < p.lists.n_sink || i >= recent_begin;
    keys[i] = forced ? kForcedKey : KeyOfScore(bits);
  };
  PoolRow<SelectTile>(
      Pooling(p, n_pooled),
      layer.scores + uint64_t{blockIdx.x} * layer.n_tokens * sizeof(float),
      words, [&](uint32_t i, float output) {
        uint32_t bits;
        memcpy(&bits, &output, sizeof(bits));
        put(i, bits);
      });
  for (uint32_t i = n_pooled + threadIdx.x; i < n; i += kSelectThreads) {
    put(i, kInfinityBits);
  }
  BlockSelect(SharedKeys(keys, n), n, n_keep, p.lists.higher_wins != 0,
              KeepList(p.lists, layer, blockIdx.x),
              *reinterpret_cast<SelectShared*>(words));
}

}  // namespace kvevict::cuda
