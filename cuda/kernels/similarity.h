// Arguments and launch shapes of similarity.cu.
#ifndef KVEVICT_CUDA_KERNELS_SIMILARITY_H_
#define KVEVICT_CUDA_KERNELS_SIMILARITY_H_

#include "cosines.h"
#include "params.h"

namespace kvevict::cuda {

struct SimilarityLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t scores;       // f32 [n_lists, n_tokens], in place
  // u32 [n_lists, n_tokens]: the key of each slot's block
  uint64_t select_keys;
  uint32_t n_tokens;
  uint32_t n_keep;
};
static_assert(sizeof(SimilarityLayer) == 40);

struct SimilarityParams {
  static constexpr uint32_t kMaxLayers = 95;
  CacheRows keys;
  // Scratch: [n_layers, n_kv_heads] each.
  // i64 [stride]: sums of rows of blocks that were not taken
  uint64_t row_sums;
  uint64_t totals;   // i64 [stride / block]: sums of such blocks of a list
  uint64_t sums;     // f32 [n_chunks, head_dim]: sums of directions
  uint64_t scales;   // f32 [stride], of keys
  uint64_t words;    // u32 [SimilarityWords(stride / block)] per list
  uint32_t n_lists;  // 1, or n_kv_heads
  uint32_t n_kv_heads;
  uint32_t stride;    // tokens of the longest layer
  uint32_t n_chunks;  // chunks of the longest layer
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t block;        // slots of a block
  uint32_t higher_wins;  // of equal blocks
  float mass;
  uint32_t first_tile;  // of the launch: similarity_rows
  SimilarityLayer layers[kMaxLayers];
};
static_assert(sizeof(SimilarityParams) <= 4096);

constexpr uint32_t kSimilarityThreads = kCosineThreads;

// Tokens whose directions a block adds up. A constant, since sums depend on it.
constexpr uint32_t kSimilarityChunk = kSimilarityThreads;

// The words of a list with n_blocks: how many blocks have room after the taken
// ones, how many were not taken, the masses of all, whether each was taken, and
// which were not.
constexpr uint64_t SimilarityWords(uint32_t n_blocks) {
  return 2 + 3 * uint64_t{n_blocks};
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_SIMILARITY_H_
