// From a tile's weights to its scores: sums over the query rows, by warp and
// then, in the order of the warps, over the block.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SCORES_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SCORES_CUH_

#include "device.cuh"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"

namespace kvevict::cuda {
namespace {

static_assert(KV_OUT != 1 || CanReduceByMax(kWindow));

// Heads that a row block keeps apart.
constexpr uint32_t kSums = KV_OUT == 0 ? 1 : kShape.heads_per_block;
// Tiles of rows that a warp adds up: where its two may belong to two heads, it
// has a sum of each.
constexpr uint32_t kSlotTiles =
    kSums > 1 && kShape.tiles_per_head % kTilesPerWarp != 0 ? 1 : kTilesPerWarp;
constexpr uint32_t kSlotsPerWarp = kTilesPerWarp / kSlotTiles;
constexpr uint32_t kSlots = kShape.row_warps * kSlotsPerWarp;
constexpr uint32_t kSlotsPerSum =
    kSums > 1 ? kShape.tiles_per_head / kSlotTiles : kSlots;
// Row blocks that add to one score.
constexpr uint32_t kBlocksPerScore =
    KV_OUT == 2 ? kShape.blocks_per_head : kShape.n_blocks;

// f32 [2 (tile % 2), kSlots, kTileKeys].
KV_DEVICE float* SlotSums(float* key_sums, uint32_t tile, uint32_t slot) {
  return key_sums + (tile % 2 * kSlots + slot) * kTileKeys;
}

template <bool kMasked>
KV_DEVICE void SumChunk(const Chunk& chunk, const Mask<kMasked>& mask,
                        float scale, const float (&references)[kLaneRows],
                        float (&sums)[kSlotsPerWarp]) {
  constexpr uint32_t kRows = kLaneRows / kSlotsPerWarp;
  for (uint32_t s = 0; s < kSlotsPerWarp; ++s) {
    float v[4];
    for (uint32_t j = 0; j < 4; ++j) {
      for (uint32_t i = s * kRows; i < (s + 1) * kRows; ++i) {
        const float weight = Weight(chunk, mask, i, j, scale, references[i]);
        v[j] = i == s * kRows ? weight : Combine(v[j], weight);
      }
    }
    sums[s] = HalveSums(v);
  }
}

// Sums over this warp's rows of the keys it has of a tile.
template <bool kMasked>
KV_DEVICE void SumKeys(const Work& work, const Products& products,
                       const uint32_t* visible_keys, uint32_t tile,
                       const float (&references)[kLaneRows], float* key_sums) {
#pragma unroll kUnrolledChunks
  for (uint32_t c = 0; c < kChunksPerWarp; ++c) {
    const Chunk& chunk = products.Multiply(c);
    const Mask<kMasked> mask(visible_keys,
                             work.first_key + tile * kTileKeys + ChunkKey(c));
    float sums[kSlotsPerWarp];
    SumChunk(chunk, mask, work.p.scale_log2e, references, sums);

    const bool upper = (Lane() & 4) != 0;
    const uint32_t first_slot = RowWarp() * kSlotsPerWarp;
    const uint32_t key = ChunkKey(c) + ScatteredKey();
    if constexpr (kSlotsPerWarp == 1) {
      const float sum = Combine(sums[0], ShuffleXor(sums[0], 4));
      if (!upper) SlotSums(key_sums, tile, first_slot)[key] = sum;
    } else {
      const float sum = Combine(upper ? sums[1] : sums[0],
                                ShuffleXor(upper ? sums[0] : sums[1], 4));
      SlotSums(key_sums, tile, first_slot + upper)[key] = sum;
    }
  }
}

KV_DEVICE float AddSlots(float* key_sums, uint32_t tile, uint32_t sum,
                         uint32_t key) {
  float v = 0.0f;
  for (uint32_t s = 0; s < kSlotsPerSum; ++s) {
    v = Combine(v, SlotSums(key_sums, tile, sum * kSlotsPerSum + s)[key]);
  }
  return v;
}

// One barrier after SumKeys() of the tile. A score is always stored by the same
// thread, which adds the row blocks in order.
KV_DEVICE void StoreScores(const Work& work, uint32_t block, uint32_t tile,
                           float* key_sums) {
  constexpr uint32_t kScores = (KV_OUT == 2 ? kSums : 1) * kTileKeys;
  const uint32_t thread = Afresh(threadIdx.x);
  for (uint32_t n = 0; n < CeilDiv(kScores, kThreads); ++n) {
    const uint32_t i = n * kThreads + thread;
    if (kScores % kThreads != 0 && i >= kScores) return;
    const uint32_t in_tile = i % kTileKeys;
    const uint32_t key = work.first_key + tile * kTileKeys + in_tile;
    const uint32_t first_head =
        block / kShape.blocks_per_head * kShape.heads_per_block;
    const uint32_t head = first_head + i / kTileKeys;
    if (key >= work.n_tokens() || head >= kGroup) continue;

    float v = AddSlots(key_sums, tile, i / kTileKeys, in_tile);
    if constexpr (KV_OUT == 1) {
      for (uint32_t h = 1; h < kSums && first_head + h < kGroup; ++h) {
        v = Larger(v, AddSlots(key_sums, tile, h, in_tile));
      }
    }
    const uint64_t row =
        KV_OUT == 2 ? uint64_t{work.kv_head} * kGroup + head : work.kv_head;
    const uint64_t address =
        work.layer.scores + 4 * (row * work.layer.n_tokens + key);
    const bool adds = (KV_PART != 0 || KV_CHUNKS != 0) && work.p.adds != 0;
    if (block % kBlocksPerScore != 0 || adds) {
      const float before = LoadGlobal<float>(address);
      v = KV_OUT == 1 ? Larger(before, v) : Combine(before, v);
    }
    if (block % kBlocksPerScore == kBlocksPerScore - 1) {
      v *= work.p.weight_scale;
    }
    StoreGlobal(address, v);
  }
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SCORES_CUH_
