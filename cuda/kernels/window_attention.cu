// Attention of the observation window over the keys of every layer and KV head:
// exact softmax in two passes, without an attention matrix.
//
// Both kernels: grid (n_splits, n_kv_heads, n_layers), see SplitKeys() and
// ShapeWindowAttention() in window_attention.h. A block takes one split of the
// keys of one KV head, in tiles of KV_TILE_KEYS, and all query rows of its
// group. Splits past the end of a shorter layer do nothing.
//
// Causal: window row w is token n_tokens - KV_WINDOW + w. Keys after a row
// never matter to it, whatever they hold.
//
// Compile-time constants: KV_Q_DTYPE KV_K_DTYPE KV_HEAD_DIM KV_WINDOW KV_GROUP
// KV_PAGED (2: far rows) KV_USE_MMA KV_TILE_KEYS KV_RAGGED, and KV_OUT: 0 is
// one row of scores per KV head, the sum over the group; 1 the maximum of the
// group's sums; 2 one row per query head; 3 one row per query head and row of
// the window, unscaled. These apply if they are not 0, or
// KV_LOGIT_HEADS not 1:
//   KV_SOFTMAX_PAST   rows see only the keys before the window
//   KV_WEIGH_BY_PAST  a row's weights are multiplied by the number of keys
//                     before its own
//   KV_MAX_OF_ROWS    the maximum over rows instead of their sum
//   KV_LOGIT_HEADS    number of query heads whose largest logit is the row's;
//                     without tensor cores
//   KV_SOFTCAP        scaled logits are capped by a tanh
//   KV_SINKS          each head has a logit in its softmax that no key has
//   KV_BIAS           each key has a bias, added to its logits
//   KV_SPREAD         ScoreParams::spread times the rows' variance is added
//   KV_MEASURE        also measures the slots before the window: 1: entropy and
//                     variance of the weights; 2: their sum over the ends
//   KV_LISTED         rows are those of a list, see list_rows.h, which says what
//                     they see and the factors of their weights
//   KV_PART           the window is a part of more rows, see ScoreParams. Sums
//                     are added to the present scores; weight_scale is 1.
//   KV_STAGED_TILES   tiles of codes on their way, see StagedTiles()
//   KV_CHUNKS         a split is a chunk of any length. Only queries of the
//                     chunk's own tokens, from its row first_row on, see its
//                     keys, and they see all. Further launches add later rows.
#include "device.cuh"
#include "window_attention.h"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"
#if KV_USE_MMA
#include "window_attention_mma.cuh"
#else
#include "window_attention_fma.cuh"
#endif
#include "window_attention_scores.cuh"

namespace kvevict::cuda {
namespace {

// Whether some row does not see all keys of a tile.
KV_DEVICE bool TouchesWindow(const Work& work, uint32_t tile) {
  // The first row sees its own token too, unless only the past counts.
  constexpr uint32_t kOwn = KV_SOFTMAX_PAST != 0 || kMeasuresDynamics ? 0 : 1;
  const uint32_t end = work.first_key + (tile + 1) * kTileKeys;
  if constexpr (KV_CHUNKS != 0) return end > work.n_tokens();
  if constexpr (KV_LISTED != 0) {
    return work.p.n_masked >= work.n_tokens() ||
           end > work.n_tokens() - work.p.n_masked;
  }
  // A part may begin before the first token.
  if constexpr (KV_PART != 0) return end + kWindow > work.n_tokens() + kOwn;
  return end > work.n_tokens() - kWindow + kOwn;
}

template <bool kMasked>
KV_DEVICE void SumTile(const Work& work, const Products& products,
                       const uint32_t* visible_keys, uint32_t tile,
                       RowSum (&rows)[kLaneRows]) {
  ForEachChunk<false>(
      work, products, tile, [&](const Chunk& chunk, uint32_t c) {
        const Mask<kMasked> mask(
            visible_keys, work.first_key + tile * kTileKeys + ChunkKey(c));
        AddChunk(chunk, mask, LogitScale(work), rows);
      });
}

// With KV_OUT 3: writes the weights of this warp's rows for its keys of a tile,
// [n_kv_heads, group, window, n_tokens].
template <bool kMasked>
KV_DEVICE void StoreRows(const Work& work, const Products& products,
                         const uint32_t* visible_keys, uint32_t block,
                         uint32_t tile, const float (&references)[kLaneRows]) {
  const uint32_t n_tokens = work.n_tokens();
  ForEachChunk<false>(
      work, products, tile, [&](const Chunk& chunk, uint32_t c) {
        const uint32_t first_key =
            work.first_key + tile * kTileKeys + ChunkKey(c);
        const Mask<kMasked> mask(visible_keys, first_key);
        for (uint32_t i = 0; i < kLaneRows; ++i) {
          const QueryRow row = FindQueryRow(work, block, LaneRow(i));
          if (!row.valid) continue;
          const uint64_t number =
              (uint64_t{work.kv_head} * kGroup + row.head) * kWindow +
              row.window;
          const uint64_t out =
              work.layer.scores + 4 * number * work.layer.n_tokens;
          for (uint32_t j = 0; j < 4; ++j) {
            const uint32_t key = first_key + LaneKey() + kKeyStep[j];
            if (key >= n_tokens) continue;
            StoreGlobal(
                out + uint64_t{4} * key,
                Weight(chunk, mask, i, j, LogitScale(work), references[i]));
          }
        }
      });
}

}  // namespace

// Pass 1: computes partial_lse of the block's split, for layers without
// row_lse. Reads the keys once per row block and writes 4 bytes per query row.
KV_KERNEL(window_lse, ScoreParams, kThreads, kShape.blocks_per_sm) {
  KV_SHARED(uint32_t, visible_keys, kBlockRows);
  KV_SHARED(RowSum, group_sums, kShape.key_groups * kBlockRows);
  const Work work = WorkOfBlock(p);
  if (work.n_tiles() == 0 || KnowsLse(work)) return;
  Products products(work);

  for (uint32_t block = 0; block < kShape.n_blocks; ++block) {
    products.Begin(block);
    if (threadIdx.x < kBlockRows) {
      visible_keys[threadIdx.x] = VisibleKeys(work, block, threadIdx.x);
    }
    RowSum rows[kLaneRows];
    for (uint32_t i = 0; i < kLaneRows; ++i) rows[i] = NoKeys();
    products.Meet();
    for (uint32_t tile = 0; tile < work.n_tiles(); ++tile) {
      products.NextTile(tile);
      if (TouchesWindow(work, tile)) {
        SumTile<true>(work, products, visible_keys, tile, rows);
      } else {
        SumTile<false>(work, products, visible_keys, tile, rows);
      }
    }

    for (uint32_t i = 0; i < kLaneRows; ++i) {
      const RowSum row = JoinLanes(rows[i]);
      if (Lane() % 4 == 0) {
        group_sums[KeyGroup() * kBlockRows + LaneRow(i)] = row;
      }
    }
    BlockSync();
    const QueryRow row = FindQueryRow(work, block, threadIdx.x);
    if (threadIdx.x < kBlockRows && row.valid) {
      RowSum sum = group_sums[threadIdx.x];
      for (uint32_t g = 1; g < kShape.key_groups; ++g) {
        sum = Join(sum, group_sums[g * kBlockRows + threadIdx.x]);
      }
      StoreGlobal(PartialAddress(work, blockIdx.x, row), LogSum(sum));
    }
  }
}

// Pass 2: computes the scores of the block's split. Reads the keys once per row
// block, and the row log-sum-exps of all splits.
KV_KERNEL(window_scores, ScoreParams, kThreads, kShape.blocks_per_sm) {
  KV_SHARED(uint32_t, visible_keys, kBlockRows);
  KV_SHARED(float, row_lse, kBlockRows);
  KV_SHARED(float, key_sums, kSlotFloats*(kSpreads ? 2 : 1));
  const Work work = WorkOfBlock(p);
  Measured measured;
  if (work.n_tiles() == 0) {
    if (KV_MEASURE != 0 && threadIdx.x == 0) StoreMeasured(work, measured);
    return;
  }
  Products products(work);

  for (uint32_t block = 0; block < kShape.n_blocks; ++block) {
    products.Begin(block);
    // What Begin() found of the thread's row is found again.
    const uint32_t thread = Afresh(threadIdx.x);
    if (thread < kBlockRows) {
      visible_keys[thread] = VisibleKeys(work, block, thread);
      row_lse[thread] = RowReference(work, block, thread);
    }
    BlockSync();
    float references[kLaneRows];
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      references[i] = row_lse[LaneRow(i)];
    }

    // The sums of a tile are in one buffer while the previous tile is stored
    // from the other, so one barrier per tile suffices for both.
    for (uint32_t tile = 0; tile < work.n_tiles(); ++tile) {
      products.NextTile(tile);
      if constexpr (KV_OUT == 3) {
        if (HasPadding(work) || TouchesWindow(work, tile)) {
          StoreRows<true>(work, products, visible_keys, block, tile,
                          references);
        } else {
          StoreRows<false>(work, products, visible_keys, block, tile,
                           references);
        }
        continue;
      }
      if (tile > 0) StoreScores(work, block, tile - 1, key_sums, measured);
      if (HasPadding(work) || TouchesWindow(work, tile)) {
        SumKeys<true>(work, products, visible_keys, tile, references, key_sums,
                      measured);
      } else {
        SumKeys<false>(work, products, visible_keys, tile, references, key_sums,
                       measured);
      }
    }
    BlockSync();
    if constexpr (KV_OUT != 3) {
      StoreScores(work, block, work.n_tiles() - 1, key_sums, measured);
    }
  }
  if constexpr (KV_MEASURE != 0) {
    KV_SHARED(float, warps, 2 * kThreads / 32);
    MeasureBlock(work, measured, warps);
  }
}

}  // namespace kvevict::cuda
