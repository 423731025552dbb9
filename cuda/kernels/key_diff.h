// Arguments and launch shapes of key_diff.cu.
#ifndef KVEVICT_CUDA_KERNELS_KEY_DIFF_H_
#define KVEVICT_CUDA_KERNELS_KEY_DIFF_H_

#include "params.h"

namespace kvevict::cuda {

struct KeyDiffLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in KeyDiffParams::tokens
};
static_assert(sizeof(KeyDiffLayer) == 32);

struct KeyDiffParams {
  static constexpr uint32_t kMaxLayers = 120;
  CacheRows keys;
  CountTable tokens;  // per KV head
  // f32 [n_layers, n_kv_heads, n_chunks, head_dim], 16-byte aligned: the sum of
  // the directions of a chunk's keys.
  uint64_t sums;
  uint32_t n_kv_heads;
  uint32_t n_chunks;  // KeyDiffChunks() of the longest layer
  KeyDiffLayer layers[kMaxLayers];
};
static_assert(sizeof(KeyDiffParams) <= 4096);

constexpr uint32_t kDiffThreads = 256;
// The rows that a thread loads at once.
constexpr uint32_t kDiffRows = 4;

// key_sums: tokens of a block. A constant, since sums depend on it.
constexpr uint32_t kDiffChunk = 256;
constexpr uint32_t KeyDiffChunks(uint32_t n_tokens) {
  return n_tokens / kDiffChunk + (n_tokens % kDiffChunk != 0 ? 1 : 0);
}

// add_key_sums: elements of a block, and its threads that share one.
constexpr uint32_t kDiffColumns = 32;
constexpr uint32_t kDiffSlices = kDiffThreads / kDiffColumns;

// key_diffs: rows of a block.
constexpr uint32_t KeyDiffBlockRows(uint32_t lanes) {
  return kDiffThreads / lanes * kDiffRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_DIFF_H_
