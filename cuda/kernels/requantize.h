// Arguments and launch shape of requantize.cu.
#ifndef KVEVICT_CUDA_KERNELS_REQUANTIZE_H_
#define KVEVICT_CUDA_KERNELS_REQUANTIZE_H_

#include "params.h"

namespace kvevict::cuda {

struct RequantizePlane {
  uint64_t from;  // slot 0, head 0
  uint64_t to;
  uint64_t from_table;  // of blocks; paged rows only
  uint64_t to_table;
  uint64_t keep;        // i32 [n_lists, keep stride]; 0: 0, 1, ...
  uint64_t from_scale;  // of quantized rows, as RowNumbers::base
  uint64_t from_minimum;
  uint64_t to_scale;
  uint64_t to_minimum;
  uint64_t from_recent;  // as RecentRows::base
  uint64_t to_recent;
  uint32_t n_keep;      // of the longest list
  int32_t first_count;  // index in RequantizeParams::counts
  uint32_t first_slot;  // where the first kept row goes
  uint32_t reserved;
};
static_assert(sizeof(RequantizePlane) == 104);

struct RequantizeParams {
  static constexpr uint32_t kMaxPlanes = 34;
  // head_dim, lanes, wide, and the addresses of scales, minima and recent rows
  // are not read.
  CacheRows from;
  CacheRows to;
  CountTable counts;     // per list
  uint32_t n_lists;      // 1 or n_kv_heads
  uint32_t keep_stride;  // elements from list to list; 0: the plane's n_keep
  uint32_t in_place;     // regroup: rows move down or stay
  uint32_t groups_per_block;
  RequantizePlane planes[kMaxPlanes];
};
static_assert(sizeof(RequantizeParams) <= 4096);

constexpr uint32_t kRequantizeThreads = 256;
// The rows of a block. A warp stores one row after the other.
constexpr uint32_t kRequantizeRows = 2 * kRequantizeThreads / 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REQUANTIZE_H_
