// Arguments and launch shapes of positions.cu.
#ifndef KVEVICT_CUDA_KERNELS_POSITIONS_H_
#define KVEVICT_CUDA_KERNELS_POSITIONS_H_

#include "params.h"

namespace kvevict::cuda {

struct PositionsLayer {
  uint64_t keep;  // i32 [n_lists, keep stride] slots; 0: keep the first ones
  uint64_t out;   // i32 [n_lists, n_keep]
  SlotPositions slots;  // before the eviction
  uint32_t n_keep;      // of the longest list
  int32_t first_count;  // index in PositionsParams::counts
};
static_assert(sizeof(PositionsLayer) == 48);

struct PositionsParams {
  static constexpr uint32_t kMaxLayers = 80;
  uint32_t n_lists;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  CountTable counts;
  CountTable kept;  // of the slots before
  PositionsLayer layers[kMaxLayers];
};
static_assert(sizeof(PositionsParams) <= 4096);

struct LengthsParams {
  static constexpr uint32_t kMaxLists = 1000;
  uint64_t lengths;  // u32 [n_lists, 2]; for counts [n_lists]
  uint32_t first_list;
  uint32_t n_lists;
  uint32_t logical;            // set_lengths
  uint32_t more;               // advance_counts: added to each
  uint32_t values[kMaxLists];  // set_lengths: stored; set_counts
};
static_assert(sizeof(LengthsParams) <= 4096);

// map_positions: grid (blocks for the longest n_keep, n_lists, n_layers).
// set_lengths, advance_counts, set_counts: grid (blocks for n_lists).
constexpr uint32_t kPositionsThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_POSITIONS_H_
