// Arguments and launch shapes of redundancy.cu.
#ifndef KVEVICT_CUDA_KERNELS_REDUNDANCY_H_
#define KVEVICT_CUDA_KERNELS_REDUNDANCY_H_

#include "cosines.h"
#include "params.h"

namespace kvevict::cuda {

struct RedundancyLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // f32 [n_kv_heads, n_tokens], in place
  uint32_t n_tokens;
  int32_t first_count;  // index in RedundancyParams::tokens
};
static_assert(sizeof(RedundancyLayer) == 32);

struct RedundancyParams {
  static constexpr uint32_t kMaxLayers = 119;
  CacheRows keys;
  CountTable tokens;  // per KV head
  // f32 [n_layers, n_kv_heads, n_chunks, head_dim]: the sum of the directions
  // of a chunk's keys.
  uint64_t sums;
  // [n_layers, n_kv_heads, 3, stride]: f32 scales of the keys, replaced by sums
  // of columns; u32 columns that rows leave out; f32 entries there.
  uint64_t rows;
  uint32_t stride;  // tokens of the longest layer
  uint32_t n_kv_heads;
  uint32_t n_chunks;  // RedundancyChunks() of the longest layer
  float threshold;
  float score_weight;
  float weight;
  uint32_t first_tile;  // of the launch: search and columns
  uint32_t reserved;
  RedundancyLayer layers[kMaxLayers];
};
static_assert(sizeof(RedundancyParams) <= 4096);

constexpr uint32_t kRedundancyThreads = kCosineThreads;

// Tokens of a block, in all kernels but redundancy_search and redundancy_mix. A
// constant, since sums depend on it.
constexpr uint32_t kRedundancyChunk = kRedundancyThreads;
constexpr uint32_t RedundancyChunks(uint32_t n_tokens) {
  return n_tokens / kRedundancyChunk + (n_tokens % kRedundancyChunk != 0);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REDUNDANCY_H_
