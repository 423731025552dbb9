// Arguments and launch shapes of merge.cu.
#ifndef KVEVICT_CUDA_KERNELS_MERGE_H_
#define KVEVICT_CUDA_KERNELS_MERGE_H_

#include "cosines.h"
#include "params.h"

namespace kvevict::cuda {

struct MergeLayer {
  uint64_t keys;              // slot 0, head 0
  uint64_t values;            // likewise; 0: none
  uint64_t block_table;       // i32; paged rows only
  uint64_t keep;              // i32 [n_lists, keep stride]
  uint32_t n_tokens;          // of the longest head
  uint32_t n_keep;            // of the longest list
  int32_t first_token_count;  // index in MergeParams::tokens
  int32_t first_keep_count;   // index in MergeParams::counts
};
static_assert(sizeof(MergeLayer) == 48);

struct MergeParams {
  static constexpr uint32_t kMaxLayers = 74;
  CacheRows keys;
  CacheRows values;
  CountTable tokens;  // per KV head
  CountTable counts;  // per list
  // [n_layers, n_kv_heads, 4, stride]: f32 scales of keys, 0 for tokens that
  // take no part; f32 norms of values; f32 similarities; u32 targets, as
  // indices among those that stay.
  uint64_t rows;
  uint64_t cutoffs;  // f32 [n_layers, n_kv_heads]
  uint32_t stride;   // tokens of the longest layer
  uint32_t n_kv_heads;
  uint32_t n_lists;      // 1 or n_kv_heads
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  uint32_t rule;         // of kvevict_merge
  float threshold;       // rule values
  float quantile;        // rule values; 0: there are no cutoffs
  uint32_t first_tile;   // of the launch: merge_search
  MergeLayer layers[kMaxLayers];
};
static_assert(sizeof(MergeParams) <= 4096);

constexpr uint32_t kMergeThreads = kCosineThreads;
// merge_rows: rows that stay, per block.
constexpr uint32_t kMergeRows = kMergeThreads / 32;

// The numbers of kvevict_merge.
enum : uint32_t { kMergeValues = 1, kMergePivot = 2, kMergeWeighted = 3 };

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_MERGE_H_
