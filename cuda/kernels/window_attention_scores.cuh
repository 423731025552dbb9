// Turns a tile's weights into scores: sums over the query rows, first per warp
// and then, in the order of the warps, over the block.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SCORES_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SCORES_CUH_

#include "device.cuh"
#include "over_block.cuh"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"

namespace kvevict::cuda {
namespace {

static_assert(KV_OUT != 1 || CanReduceByMax(kWindow));

// Heads that a row block sums separately.
constexpr uint32_t kSums =
    KV_OUT == 0 && !kSpreads ? 1 : kShape.heads_per_block;
// Tiles of rows that a warp adds up. If its two tiles may belong to two heads
// it has a sum for each.
constexpr uint32_t kSlotTiles =
    kSums > 1 && kShape.tiles_per_head % kTilesPerWarp != 0 ? 1 : kTilesPerWarp;
constexpr uint32_t kSlotsPerWarp = kTilesPerWarp / kSlotTiles;
constexpr uint32_t kSlots = kShape.row_warps * kSlotsPerWarp;
constexpr uint32_t kSlotsPerSum =
    kSums > 1 ? kShape.tiles_per_head / kSlotTiles : kSlots;
// The row blocks that add to one score.
constexpr uint32_t kBlocksPerScore =
    KV_OUT == 2 ? kShape.blocks_per_head : kShape.n_blocks;

static_assert(!kSpreads || kShape.blocks_per_head == 1);

// A thread's part of the block's measure, see KV_MEASURE.
struct Measured {
  float first = 0.0f;  // an entropy is in base 2
  float variance = 0.0f;
};

// f32 [2 (tile % 2), kSlots, kTileKeys], followed by the same for squares.
constexpr uint32_t kSlotFloats = 2 * kSlots * kTileKeys;
KV_DEVICE float* SlotSums(float* key_sums, uint32_t tile, uint32_t slot) {
  return key_sums + (tile % 2 * kSlots + slot) * kTileKeys;
}

// Sums over a lane's rows for its four keys. The first n_past of these are
// before the window.
struct LaneSums {
  float sums[kSlotsPerWarp];
  float squares[kSlotsPerWarp];
};

template <bool kMasked>
KV_DEVICE LaneSums SumChunk(const Chunk& chunk, const Mask<kMasked>& mask,
                            float scale, const float (&references)[kLaneRows],
                            int32_t n_past, Measured& measured) {
  constexpr uint32_t kRows = kLaneRows / kSlotsPerWarp;
  LaneSums all;
  for (uint32_t s = 0; s < kSlotsPerWarp; ++s) {
    float v[4];
    float squares[4];
    for (uint32_t j = 0; j < 4; ++j) {
      for (uint32_t i = s * kRows; i < (s + 1) * kRows; ++i) {
        const float weight = Weight(chunk, mask, i, j, scale, references[i]);
        const bool is_first = i == s * kRows;
        v[j] = is_first ? weight : Combine(v[j], weight);
        if constexpr (kSpreads) {
          squares[j] = Fma(weight, weight, is_first ? 0.0f : squares[j]);
        }
        if constexpr (kMeasuresDynamics) {
          const bool is_past =
              !kMasked || static_cast<int32_t>(kKeyStep[j]) < n_past;
          if (is_past) measured.first -= weight * Log2(weight + 1e-10f);
        }
      }
    }
    all.sums[s] = HalveSums(v);
    if constexpr (kSpreads) all.squares[s] = HalveSums(squares);
  }
  return all;
}

// Stores the sums of a lane and its neighbour to the slots of the warp.
KV_DEVICE void StoreSlots(const float (&sums)[kSlotsPerWarp], uint32_t tile,
                          uint32_t key, float* key_sums) {
  const bool upper = (Lane() & 4) != 0;
  const uint32_t first_slot = RowWarp() * kSlotsPerWarp;
  if constexpr (kSlotsPerWarp == 1) {
    const float sum = Combine(sums[0], ShuffleXor(sums[0], 4));
    if (!upper) SlotSums(key_sums, tile, first_slot)[key] = sum;
  } else {
    const float sum = Combine(upper ? sums[1] : sums[0],
                              ShuffleXor(upper ? sums[0] : sums[1], 4));
    SlotSums(key_sums, tile, first_slot + upper)[key] = sum;
  }
}

// Sums this warp's rows for its keys of a tile.
template <bool kMasked>
KV_DEVICE void SumKeys(const Work& work, const Products& products,
                       const uint32_t* visible_keys, uint32_t tile,
                       const float (&references)[kLaneRows], float* key_sums,
                       Measured& measured) {
  ForEachChunk<!kMasked>(
      work, products, tile, [&](const Chunk& chunk, uint32_t c) {
        const uint32_t first_key =
            work.first_key + tile * kTileKeys + ChunkKey(c);
        const Mask<kMasked> mask(visible_keys, first_key);
        int32_t n_past = 0;
        if constexpr (kMeasuresDynamics && kMasked) {
          n_past = static_cast<int32_t>(work.n_tokens() - kWindow - first_key -
                                        LaneKey());
        }
        const LaneSums all = SumChunk(chunk, mask, LogitScale(work), references,
                                      n_past, measured);
        const uint32_t key = ChunkKey(c) + ScatteredKey();
        StoreSlots(all.sums, tile, key, key_sums);
        if constexpr (kSpreads) {
          StoreSlots(all.squares, tile, key, key_sums + kSlotFloats);
        }
      });
}

KV_DEVICE float AddSlots(float* key_sums, uint32_t tile, uint32_t sum,
                         uint32_t key) {
  float v = 0.0f;
  for (uint32_t s = 0; s < kSlotsPerSum; ++s) {
    v = Combine(v, SlotSums(key_sums, tile, sum * kSlotsPerSum + s)[key]);
  }
  return v;
}

// The unbiased variance of the window's rows from their sum and sum of squares.
// Tiny values are rounding errors. NaN if the sums are NaN.
KV_DEVICE float Variance(float sum, float squares) {
  constexpr float kRows = kWindow;
  const float apart = Fma(sum * (-1.0f / kRows), sum, squares);
  return apart <= squares * 0x1p-17f ? 0.0f : apart * (1.0f / (kRows - 1.0f));
}

// Whether a key is measured.
KV_DEVICE bool IsMeasured(const Work& work, uint32_t key) {
  const uint32_t n_past = work.n_tokens() - kWindow;
  if (kMeasuresDynamics) return key < n_past;
  return key < n_past &&
         (key < work.p.n_first || n_past - key <= work.p.n_last);
}

// A key's sum over the rows of a head of the block, or of all its heads, plus
// what is added for the rows' variance.
KV_DEVICE float HeadScore(const Work& work, float* key_sums, uint32_t tile,
                          uint32_t head, uint32_t in_tile, bool is_measured,
                          Measured& measured) {
  const float sum = AddSlots(key_sums, tile, head, in_tile);
  if constexpr (kMeasuresEnds) measured.first += is_measured ? sum : 0.0f;
  if constexpr (!kSpreads) return sum;
  const float variance =
      Variance(sum, AddSlots(key_sums + kSlotFloats, tile, head, in_tile));
  if constexpr (kMeasuresDynamics) {
    measured.variance += is_measured ? variance : 0.0f;
  }
  return KV_SPREAD != 0 ? Fma(work.p.spread, variance, sum) : sum;
}

// Stores the scores of a tile, one barrier after its SumKeys(). A score is
// always stored by the same thread, which adds the row blocks in order.
KV_DEVICE void StoreScores(const Work& work, uint32_t block, uint32_t tile,
                           float* key_sums, Measured& measured) {
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

    const bool is_measured = KV_MEASURE != 0 && IsMeasured(work, key);
    float v = HeadScore(work, key_sums, tile, i / kTileKeys, in_tile,
                        is_measured, measured);
    if constexpr (KV_OUT != 2) {
      for (uint32_t h = 1; h < kSums && first_head + h < kGroup; ++h) {
        const float of_head =
            HeadScore(work, key_sums, tile, h, in_tile, is_measured, measured);
        v = KV_OUT == 1 ? Larger(v, of_head) : v + of_head;
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

// Called by one thread.
KV_DEVICE void StoreMeasured(const Work& work, const Measured& measured) {
  const uint64_t block =
      (uint64_t{blockIdx.z} * work.p.n_kv_heads + work.kv_head) *
          work.p.n_splits +
      blockIdx.x;
  const uint64_t address = work.p.measures + 8 * block;
  StoreGlobal(address, measured.first);
  StoreGlobal(address + 4, measured.variance);
}

// Adds the measures of all threads in a fixed order. `warps` has two elements
// for each warp.
KV_DEVICE void MeasureBlock(const Work& work, Measured measured, float* warps) {
  const auto add = [](float a, float b) { return a + b; };
  constexpr float kNats = kMeasuresDynamics ? 0.693147180559945f : 1.0f;
  measured.first = OverBlock<kThreads>(measured.first, warps, add) * kNats;
  measured.variance =
      OverBlock<kThreads>(measured.variance, warps + kThreads / 32, add);
  if (threadIdx.x == 0) StoreMeasured(work, measured);
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SCORES_CUH_
