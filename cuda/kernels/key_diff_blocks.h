// Arguments and launch shapes of key_diff_blocks.cu.
#ifndef KVEVICT_CUDA_KERNELS_KEY_DIFF_BLOCKS_H_
#define KVEVICT_CUDA_KERNELS_KEY_DIFF_BLOCKS_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

struct KeyDiffBlocksLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in KeyDiffBlocksParams::tokens
  uint32_t n_keep;
  int32_t first_keep_count;  // index in KeyDiffBlocksParams::keep
};
static_assert(sizeof(KeyDiffBlocksLayer) == 40);

struct KeyDiffBlocksParams {
  static constexpr uint32_t kMaxLayers = 16;  // each layer has scratch
  CacheRows keys;
  CountTable tokens;  // per KV head
  CountTable keep;
  // [n_layers, n_kv_heads] of KeyDiffBlocksBytes(), 16-byte aligned
  uint64_t scratch;
  uint32_t n_kv_heads;
  uint32_t n_most;  // tokens of the longest layer
  uint32_t block;
  uint32_t higher_wins;  // of equal scores
  KeyDiffBlocksLayer layers[kMaxLayers];
};
static_assert(sizeof(KeyDiffBlocksParams) <= 4096);

// The rows that a thread loads at once.
constexpr uint32_t kBlockwiseRows = 4;

// The scratch of a head: the sum of directions as i64 [head_dim], the same as
// f32, and for the tokens of the set their numbers, their scores, and the
// places of those that stay.
struct KeyDiffBlocksScratch {
  uint64_t sums = 0;
  uint64_t direction;
  uint64_t tokens;
  uint64_t scores;
  uint64_t places;
  uint64_t n_bytes;
};
constexpr KeyDiffBlocksScratch LayOutKeyDiffBlocks(uint32_t head_dim,
                                                   uint32_t n_tokens) {
  const uint64_t elements = (uint64_t{head_dim} + 3) / 4 * 4;
  const uint64_t list = (uint64_t{n_tokens} + 3) / 4 * 16;
  KeyDiffBlocksScratch s{};
  s.direction = s.sums + elements * 8;
  s.tokens = s.direction + elements * 4;
  s.scores = s.tokens + list;
  s.places = s.scores + list;
  s.n_bytes = s.places + list;
  return s;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_DIFF_BLOCKS_H_
