// Launch shapes and scratch of topk.cu.
#ifndef KVEVICT_CUDA_KERNELS_TOPK_H_
#define KVEVICT_CUDA_KERNELS_TOPK_H_

#include "params.h"

namespace kvevict::cuda {

// make_keys: grid (blocks for the longest layer, n_lists, n_layers).
// pin_positions: grid (blocks for n_positions, n_lists, n_layers).
constexpr uint32_t kKeysThreads = 256;

// Short lists use select_topk: grid (n_lists, n_layers), a block per list. With
// 256 threads all 288 lists of an 8-head, 36-layer model run on an H200 at
// once.
constexpr uint32_t kSelectThreads = 256;

// Longer lists are spread over blocks, in five launches with grid (LongChunks()
// of the longest layer, n_lists, n_layers): select_long_digit with round 0, 1
// and 2, select_long_count, select_long_emit.
constexpr uint32_t kMaxShortKeys = 65536;
constexpr uint32_t kLongQuads = 2048;  // per block, four keys each

// A list's first quad may begin three words before it.
constexpr uint32_t LongChunks(uint32_t n_tokens) {
  return static_cast<uint32_t>((uint64_t{n_tokens} + 6) / 4 / kLongQuads + 1);
}

// Scratch of long lists: LongWords() u32 for each list of each layer, zero
// before the first launch. After the last launch the bins are zero again.
//   bins[2048]          keys per value of the digit
//   number of blocks that are done with the round
//   low, needed, n_equal  of the cut so far: see Cut in topk.cuh
//   {greater, equal} [n_chunks]   keys of each chunk, relative to the cut
constexpr uint32_t kBins = 2048;
constexpr uint32_t LongWords(uint32_t n_chunks) {
  return kBins + 4 + 2 * n_chunks;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_TOPK_H_
