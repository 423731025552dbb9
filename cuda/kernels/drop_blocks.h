// Arguments and launch shape of drop_blocks.cu.
#ifndef KVEVICT_CUDA_KERNELS_DROP_BLOCKS_H_
#define KVEVICT_CUDA_KERNELS_DROP_BLOCKS_H_

#include "params.h"

namespace kvevict::cuda {

struct TableLayer {
  uint64_t entries;  // u32 or u64 [n_tables, stride]
  uint64_t keep;     // i32 [n_lists, keep stride]: slots of whole blocks
  uint64_t stride;
  uint32_t n_tables;  // 0: none is touched
  uint32_t block_size;
  uint32_t n_tokens;
  uint32_t n_keep;
  int32_t first_token_count;  // index in DropBlocksParams::tokens
  int32_t first_keep_count;   // index in DropBlocksParams::keep
};
static_assert(sizeof(TableLayer) == 48);

struct DropBlocksParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint32_t n_lists;      // 1, or one for each table
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  CountTable tokens;     // per table
  CountTable keep;       // per list
  TableLayer layers[kMaxLayers];
};
static_assert(sizeof(DropBlocksParams) <= 4096);

// Also the number of entries that are processed at a time.
constexpr uint32_t kDropThreads = 512;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DROP_BLOCKS_H_
