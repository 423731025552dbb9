// The rows of a block of window_attention.cu: keys of its split, queries of its
// row blocks.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_ROWS_CUH_

#define KV_DTYPES (1u << KV_K_DTYPE)
#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "list_rows.h"
#include "window_attention.h"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kHeadDim = KV_HEAD_DIM;
constexpr uint32_t kWindow = KV_WINDOW;
constexpr uint32_t kGroup = KV_GROUP;
constexpr uint32_t kTileKeys = KV_TILE_KEYS;
#ifndef KV_SOFTMAX_PAST
#define KV_SOFTMAX_PAST 0
#endif
#ifndef KV_WEIGH_BY_PAST
#define KV_WEIGH_BY_PAST 0
#endif
#ifndef KV_MAX_OF_ROWS
#define KV_MAX_OF_ROWS 0
#endif
#ifndef KV_LOGIT_HEADS
#define KV_LOGIT_HEADS 1
#endif
#ifndef KV_PART
#define KV_PART 0
#endif
#ifndef KV_CHUNKS
#define KV_CHUNKS 0
#endif
#ifndef KV_LISTED
#define KV_LISTED 0
#endif
#ifndef KV_SPREAD
#define KV_SPREAD 0
#endif
#ifndef KV_SOFTCAP
#define KV_SOFTCAP 0
#endif
#ifndef KV_SINKS
#define KV_SINKS 0
#endif
#ifndef KV_BIAS
#define KV_BIAS 0
#endif
#ifndef KV_MEASURE
#define KV_MEASURE 0
#endif
#ifndef KV_STAGED_TILES
#define KV_STAGED_TILES 0
#endif
constexpr uint32_t kLogitHeads = KV_LOGIT_HEADS;
constexpr bool kMeasuresDynamics = KV_MEASURE == 1;
constexpr bool kMeasuresEnds = KV_MEASURE == 2;
// True if the squares of weights are added up too.
constexpr bool kSpreads = KV_SPREAD != 0 || kMeasuresDynamics;

constexpr WindowAttentionShape kShape = ShapeWindowAttention(
    KV_USE_MMA != 0, KV_Q_DTYPE, kHeadDim, kWindow, kGroup, kTileKeys);
constexpr uint32_t kThreads = kShape.threads;
constexpr uint32_t kBlockRows = kShape.row_warps * kShape.tiles_per_warp * 16;
// Keys are multiplied and weighted 16 at a time.
constexpr uint32_t kChunksPerWarp = kTileKeys / 16 / kShape.key_groups;
// Whether a row block has rows that belong to no query.
constexpr bool kPadded =
    kWindow % kTileRows != 0 ||
    kShape.row_warps * kShape.tiles_per_warp != kShape.tiles_per_block ||
    kShape.n_blocks * kShape.heads_per_block !=
        kGroup * kShape.blocks_per_head ||
    kShape.blocks_per_head * kShape.tiles_per_block !=
        kShape.heads_per_block * kShape.tiles_per_head;

// One split of the keys of one KV head of a layer.
struct Work {
  const ScoreParams& p;
  const ScoreLayer& layer;
  uint32_t kv_head;
  uint32_t first_key;
  uint32_t tiles;

  // Tokens of the head up to the last row's own, or to the chunk's end. Loaded
  // again at every use, because registers are scarce.
  KV_DEVICE uint32_t n_tokens() const {
#if KV_RAGGED
    const uint32_t n =
        CountOf(p.tokens, layer.first_count, kv_head, layer.n_tokens);
#else
    const uint32_t n = layer.n_tokens;
#endif
    if constexpr (KV_CHUNKS != 0) {
      const uint32_t end = n > p.n_last ? n - p.n_last : 0;
      const uint32_t of_chunk = first_key + p.keys_per_split;
      return end < of_chunk ? end : of_chunk;
    }
    return KV_PART != 0 ? n - p.n_after : n;
  }

  KV_DEVICE uint32_t CountTiles(uint32_t first) const {
    const uint32_t n = n_tokens();
    uint32_t n_keys = first < n ? n - first : 0;
    if (n_keys > p.keys_per_split) n_keys = p.keys_per_split;
    return CeilDiv(n_keys, kTileKeys);
  }

  // Tiles of the split. Tensor cores and a loop over row blocks leave no register
  // for it.
  KV_DEVICE uint32_t n_tiles() const {
    return KV_USE_MMA != 0 && kShape.n_blocks > 1
               ? CountTiles(Afresh(first_key))
               : tiles;
  }
};

KV_DEVICE Work WorkOfBlock(const ScoreParams& p) {
  const ScoreLayer& layer = p.layers[blockIdx.z];
  const uint32_t first =
      (KV_CHUNKS != 0 ? p.n_first : 0) + blockIdx.x * p.keys_per_split;
  Work work = {p, layer, blockIdx.y, first, 0};
  work.tiles = work.CountTiles(first);
  return work;
}

// The splits of the block's head. Other heads of the launch may have more.
KV_DEVICE uint32_t SplitsOfLayer(const Work& work) {
  return CeilDiv(work.n_tokens(), work.p.keys_per_split);
}

KV_DEVICE uint64_t KeyRow(const Work& work, uint32_t key) {
  const RowLayout& keys = work.p.keys;
#if KV_PAGED == 2
  return RowAddress(keys, work.layer.keys, work.layer.block_table, work.kv_head,
                    key);
#else
  const uint64_t head = work.layer.keys + work.kv_head * keys.head_stride;
#if KV_PAGED
  const uint32_t page = key / keys.block_size;
  const uint64_t entry = uint64_t{work.kv_head} * keys.table_head_stride + page;
  const int64_t block = LoadGlobal<int32_t>(work.layer.block_table + entry * 4);
  return head + block * keys.block_stride +
         (key - page * keys.block_size) * keys.row_stride;
#else
  return head + key * keys.row_stride;
#endif
#endif
}

// The bias, in base 2, of a key; 0 past the last one.
KV_DEVICE float BiasOf(const Work& work, uint32_t key) {
  if (key >= work.n_tokens()) return 0.0f;
  constexpr float kLog2E = 1.44269504088896340736f;
  return LoadGlobal<float>(
             RowAddress(work.p.biases, work.p.bias_bases[blockIdx.z],
                        work.layer.block_table, work.kv_head, key)) *
         kLog2E;
}

// The factor that gives logits in base 2. With biases they are in it already.
KV_DEVICE float LogitScale(const Work& work) {
  return KV_BIAS != 0 ? 1.0f : work.p.scale_log2e;
}

// Row r of a row block.
struct QueryRow {
  uint32_t head;    // query head of the group
  uint32_t window;  // row of the observation window
  bool valid;       // false: padding
};

KV_DEVICE QueryRow FindQueryRow(const Work& work, uint32_t block, uint32_t r) {
  uint32_t tile = r / kTileRows;
  const bool in_block = tile < kShape.tiles_per_block;
  uint32_t head;
  if constexpr (kShape.blocks_per_head == 1) {
    head = block * kShape.heads_per_block + tile / kShape.tiles_per_head;
    tile %= kShape.tiles_per_head;
  } else {
    head = block / kShape.blocks_per_head;
    tile += block % kShape.blocks_per_head * kShape.tiles_per_block;
  }
  const uint32_t window = tile * kTileRows + r % kTileRows;
  bool is_there = KV_PART == 0 || window >= work.p.n_absent;
  if constexpr (KV_CHUNKS != 0) {
    is_there = work.first_key + work.p.first_row + window < work.n_tokens();
  }
  return {head, window,
          in_block && head < kGroup && window < kWindow && is_there};
}

// Whether a row block has rows that see nothing.
KV_DEVICE bool HasPadding(const Work& work) {
  if constexpr (KV_CHUNKS != 0) {
    return kPadded ||
           work.first_key + work.p.first_row + kWindow > work.n_tokens();
  }
  return kPadded || (KV_PART != 0 && work.p.n_absent != 0);
}

// The stored row of a window row; the ring may have wrapped.
KV_DEVICE uint32_t StoredRow(const Work& work, uint32_t window_row) {
  const uint32_t row = work.p.first_row + window_row;
  if constexpr (KV_CHUNKS != 0) return work.first_key + row;
  return row < work.p.ring_rows ? row : row - work.p.ring_rows;
}

// The address of a query row, for the first of the row's logit heads; 0 for
// padding.
KV_DEVICE uint64_t QueryAddress(const Work& work, uint32_t block, uint32_t r) {
  const QueryRow row = FindQueryRow(work, block, r);
  if (!row.valid) return 0;
  return work.layer.queries +
         (uint64_t{work.kv_head} * kGroup + row.head) * kLogitHeads *
             work.p.query_head_stride +
         StoredRow(work, row.window) * work.p.query_row_stride;
}

// The address of a row's record, with KV_LISTED.
KV_DEVICE uint64_t ListedAddress(const Work& work, const QueryRow& row) {
  const uint64_t head = uint64_t{blockIdx.z} * work.p.n_kv_heads + work.kv_head;
  return work.p.list + (head * kWindow + row.window) * sizeof(ListedRow);
}

// The number of keys that a row sees, of its chunk or of all; 0 for padding.
KV_DEVICE uint32_t VisibleKeys(const Work& work, uint32_t block, uint32_t r) {
  const QueryRow row = FindQueryRow(work, block, r);
  if (!row.valid) return 0;
  if constexpr (KV_CHUNKS != 0) return work.n_tokens();
  if constexpr (KV_LISTED != 0) {
    return LoadGlobal<uint32_t>(ListedAddress(work, row));
  }
  const uint32_t n_past = work.n_tokens() - kWindow;
  return KV_SOFTMAX_PAST != 0 ? n_past : n_past + row.window + 1;
}

// Layout f32 [n_layers, n_kv_heads, n_splits, group, window].
constexpr uint64_t kSplitBytes = uint64_t{4} * kGroup * kWindow;
KV_DEVICE uint64_t PartialAddress(const Work& work, uint32_t split,
                                  const QueryRow& row) {
  const uint64_t list =
      (uint64_t{blockIdx.z} * work.p.n_kv_heads + work.kv_head) *
          work.p.n_splits +
      split;
  return work.p.partial_lse + list * kSplitBytes +
         uint64_t{4} * (row.head * kWindow + row.window);
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_ROWS_CUH_
