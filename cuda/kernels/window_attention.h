// The launch of window_attention.cu: constants that its kernels and the host
// share.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_H_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_H_

#include "params.h"

namespace kvevict::cuda {

struct ScoreLayer {
  uint64_t queries;      // ring or caller's plane, head 0, row 0
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  // Natural log-sum-exps, f32, of the rows' scaled logits, [n_q_heads, window]
  // with the strides below, rows in ring order; 0: the first pass computes
  // them. With KV_SINKS, which always computes them: f32 [n_q_heads], natural
  // logits that are part of them.
  uint64_t row_lse;
  uint64_t scores;      // out: f32 [n_kv_heads or n_q_heads, n_tokens]
  uint32_t n_tokens;    // >= window; the longest head
  int32_t first_count;  // index in ScoreParams::tokens
};
static_assert(sizeof(ScoreLayer) == 48);

struct ScoreParams {
  static constexpr uint32_t kMaxLayers = 65;
  RowLayout keys;
  RowNumbers scale;  // of quantized keys, as in CacheRows
  RowNumbers minimum;
  RecentRows recent;
  int64_t query_row_stride;
  int64_t query_head_stride;
  int64_t query_element_stride;
  int64_t lse_row_stride;  // bytes
  int64_t lse_head_stride;
  // f32 [n_layers, n_kv_heads, n_splits, rows]: base-2 log-sum-exp of a row
  // over the keys of one split. Written by the first pass, read by the second.
  uint64_t partial_lse;
  float scale_log2e;   // softmax scale * log2(e); KV_SOFTCAP: cap * log2(e)
  float weight_scale;  // factor of the summed weights: 1 / window for a mean
  uint32_t n_kv_heads;
  uint32_t n_splits;        // the most of any layer; grid.x
  uint32_t keys_per_split;  // a multiple of KV_TILE_KEYS; KV_CHUNKS: a chunk
  // Window row w is stored row (first_row + w) % ring_rows, or row first_row +
  // w of the chunk.
  uint32_t first_row;
  uint32_t ring_rows;
  // KV_PART: the window's rows are those of the tokens before the last n_after.
  // The first n_absent of them are missing. With KV_PART and KV_CHUNKS, `adds`
  // says whether sums are added to the present scores.
  uint32_t n_after;
  uint32_t n_absent;
  uint32_t adds;
  // KV_MEASURE: measures the first n_first and the last n_last slots before the
  // window. KV_CHUNKS: the first n_first and the last n_last slots take no part.
  uint32_t n_first;
  uint32_t n_last;
  float spread;        // KV_SPREAD: factor of the rows' variance
  float scale_by_cap;  // KV_SOFTCAP: softmax scale / the cap
  // KV_MEASURE: f32 [n_layers, n_kv_heads, n_splits, 2], the blocks' measures.
  uint64_t measures;
  // KV_LISTED: ListedRow [n_layers, n_kv_heads, rows], see list_rows.h.
  uint64_t list;
  uint32_t n_masked;  // KV_LISTED: last keys that some row may not see
  // window_attention_few.cu: f32 [n_layers, n_kv_heads, rows, logit_stride],
  // the logits of all rows before they are scaled.
  uint32_t logit_stride;
  uint64_t logits;
  CountTable tokens;  // with KV_RAGGED, per KV head
  ScoreLayer layers[kMaxLayers];
  // KV_BIAS: each slot has an f32, added to its logits: their layout, and slot
  // 0, head 0 of each layer.
  RowLayout biases;
  uint64_t bias_bases[kMaxLayers];
};
static_assert(sizeof(ScoreParams) <= 4096);

// Keys of a tile, the step of the loop over a split (KV_TILE_KEYS of a
// variant). With tensor cores it is 128, for half the barriers and twice the
// bytes in flight, if the tiles of two blocks fit in the shared memory of a
// multiprocessor. sm_86, 89 and 120 have only 100 KB instead of 164 or more.
constexpr uint32_t kMostTileKeys = 128;
constexpr uint32_t TileKeys(bool use_mma, uint32_t head_dim, uint32_t sm) {
  const bool large = sm == 80 || sm == 87 || (sm >= 90 && sm < 120);
  return use_mma && large && head_dim <= 128 ? kMostTileKeys : 64;
}
// If a row's logit is the largest of several heads, a warp keeps two sets of
// products of a tile, which must fit in its registers.
constexpr uint32_t LogitTileKeys(uint32_t window) {
  return window > 128 ? 32 : 64;
}
// Query rows of an m16 tile. Each query head's window is padded to whole tiles,
// so that a tile belongs to one head.
constexpr uint32_t kTileRows = 16;

// How a thread block covers the query rows of a KV head. Warps form a grid: one
// row of warps per tiles_per_warp tiles of query rows, and key_groups columns
// that share the keys of a tile, so that few query rows still keep as many
// warps busy. Rows that do not fit in one block's warps are in further row
// blocks, which read the keys again.
struct WindowAttentionShape {
  uint32_t tiles_per_warp;
  uint32_t tiles_per_head;
  uint32_t heads_per_block;  // query heads in a row block
  uint32_t blocks_per_head;  // row blocks of a head; 1, or heads_per_block is 1
  uint32_t tiles_per_block;
  uint32_t n_blocks;
  uint32_t row_warps;
  uint32_t key_groups;
  uint32_t threads;
  uint32_t blocks_per_sm;  // at 128 registers; at 255 if parts are long
  // Dynamic shared memory of both kernels, without staged tiles. They use up to
  // 38 KB more static memory, 20 KB with tensor cores. Together they can exceed
  // 48 KB: set the attribute that allows it.
  uint32_t dynamic_shared_bytes;
};

constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Tensor cores take f32 queries as two parts, see window_attention_queries.cuh.
constexpr bool SplitsQueries(bool use_mma, uint32_t q_dtype) {
  return use_mma && q_dtype == kF32;
}

constexpr WindowAttentionShape ShapeWindowAttention(
    bool use_mma, uint32_t q_dtype, uint32_t head_dim, uint32_t window,
    uint32_t group, uint32_t tile_keys) {
  WindowAttentionShape s = {};
  // Two tiles of queries with more than 128 elements do not fit in the
  // registers; nor do two with two parts each.
  const bool splits = SplitsQueries(use_mma, q_dtype);
  s.tiles_per_warp = splits || (use_mma && head_dim > 128) ? 1 : 2;
  s.tiles_per_head = CeilDiv(window, kTileRows);
  const uint32_t most_tiles = 8 * s.tiles_per_warp;
  if (s.tiles_per_head <= most_tiles) {
    const uint32_t most_heads = most_tiles / s.tiles_per_head;
    s.heads_per_block = CeilDiv(group, CeilDiv(group, most_heads));
    s.n_blocks = CeilDiv(group, s.heads_per_block);
    s.blocks_per_head = 1;
    s.tiles_per_block = s.heads_per_block * s.tiles_per_head;
  } else {
    s.heads_per_block = 1;
    s.blocks_per_head = CeilDiv(s.tiles_per_head, most_tiles);
    s.tiles_per_block = CeilDiv(s.tiles_per_head, s.blocks_per_head);
    s.n_blocks = group * s.blocks_per_head;
  }
  s.row_warps = CeilDiv(s.tiles_per_block, s.tiles_per_warp);
  s.key_groups = s.row_warps <= 2 ? 4 : s.row_warps <= 4 ? 2 : 1;
  s.threads = 32 * s.row_warps * s.key_groups;
  s.blocks_per_sm = 512 / s.threads;
  // Both parts of 16 long rows take 128 registers.
  if (splits && head_dim > 128) s.blocks_per_sm = CeilDiv(s.blocks_per_sm, 2);
  // Two tiles of keys. 16 bytes more per row keep the 8 rows that ldmatrix
  // reads at once in different banks.
  s.dynamic_shared_bytes = use_mma ? 2 * tile_keys * (2 * head_dim + 16) : 0;
  return s;
}

// Codes of one byte, all of which f16 and bf16 can represent.
constexpr bool HasByteCodes(uint32_t dtype) {
  return FactsOf(static_cast<int>(dtype)).packing == Packing::kBytes;
}

// Tiles of codes that are copied to shared memory while tiles of their elements
// are multiplied (KV_STAGED_TILES of a variant): where registers leave a
// multiprocessor one block of threads, which would wait for its loads, as many as
// memory needs under way and shared memory has room for.
constexpr uint32_t StagedTiles(const WindowAttentionShape& shape,
                               uint32_t k_dtype, uint32_t sm) {
  if (!HasByteCodes(k_dtype) || shape.blocks_per_sm > 1) return 0;
  return SharedKilobytes(sm) > 128 ? 2 : 1;
}
// Dynamic shared memory with them.
constexpr uint32_t SharedBytes(const WindowAttentionShape& shape,
                               uint32_t staged_tiles, uint32_t tile_keys,
                               uint32_t head_dim) {
  return shape.dynamic_shared_bytes + staged_tiles * tile_keys * head_dim;
}

// Whether tensor cores have elements that hold the keys exactly, and take the
// queries.
constexpr bool HaveMmaElements(uint32_t q_dtype, uint32_t k_dtype) {
  const bool has_16_bits = k_dtype == kF16 || k_dtype == kBF16;
  return q_dtype == kF32 ? has_16_bits || HasByteCodes(k_dtype)
                         : (q_dtype == kF16 || q_dtype == kBF16) &&
                               (q_dtype == k_dtype || HasByteCodes(k_dtype));
}

// The dtype of these elements.
constexpr uint32_t MmaElement(uint32_t q_dtype, uint32_t k_dtype) {
  return q_dtype != kF32 ? q_dtype : k_dtype == kF16 ? kF16 : kBF16;
}

// The most rows of a window that tensor cores take, and the rows of a part
// (KV_PART).
constexpr uint32_t PartRows(uint32_t q_dtype, uint32_t k_dtype,
                            uint32_t head_dim) {
  const bool splits = q_dtype == kF32 && HaveMmaElements(q_dtype, k_dtype);
  return splits || head_dim > 128 ? 128 : 256;
}

// Whether the tensor cores can be used. sm is 80 for compute capability 8.0. In
// addition elements must be packed, key and query rows must start at multiples
// of 16 bytes, and codes must have no minimum.
constexpr bool CanUseMma(uint32_t q_dtype, uint32_t k_dtype, uint32_t head_dim,
                         uint32_t window, uint32_t sm) {
  return sm >= 80 && HaveMmaElements(q_dtype, k_dtype) && head_dim % 16 == 0 &&
         head_dim <= 256 && head_dim > 0 &&
         window <= PartRows(q_dtype, k_dtype, head_dim);
}

// KV_OUT 1, the maximum over the heads of a group, needs whole heads in a row
// block. For longer windows: KV_OUT 2, then reduce_rows.
constexpr bool CanReduceByMax(uint32_t window) { return window <= 256; }

// The splits of grid (n_splits, n_kv_heads, n_layers). They depend only on the
// longest layer, never on the machine, so that sums are the same everywhere.
struct KeySplits {
  uint32_t n_splits;
  uint32_t keys_per_split;
};

constexpr KeySplits SplitKeys(uint32_t n_tokens) {
  const uint32_t wanted = n_tokens < 2 * 1024    ? 1
                          : n_tokens > 64 * 1024 ? 64
                                                 : n_tokens / 1024;
  const uint32_t keys =
      CeilDiv(CeilDiv(n_tokens, wanted), kMostTileKeys) * kMostTileKeys;
  return {CeilDiv(n_tokens, keys), keys};
}

// Bytes at ScoreParams::partial_lse; none if every layer has its row_lse.
constexpr uint64_t PartialLseBytes(uint32_t n_layers, uint32_t n_kv_heads,
                                   uint32_t n_splits, uint32_t window,
                                   uint32_t group) {
  return uint64_t{4} * n_layers * n_kv_heads * n_splits * window * group;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_H_
