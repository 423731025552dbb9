// Arguments, launch shapes and scratch of topk.cu.
#ifndef KVEVICT_CUDA_KERNELS_TOPK_H_
#define KVEVICT_CUDA_KERNELS_TOPK_H_

#include "params.h"

namespace kvevict::cuda {

struct SelectLayer {
  uint64_t scores;  // f32 [n_lists, n_tokens], or u32 keys; not read if neither
  uint64_t keep;    // out: i32 [n_lists, keep stride]
  uint32_t n_tokens;
  uint32_t n_keep;
  int32_t first_token_count;  // index in SelectLists::tokens
  int32_t first_keep_count;
};
static_assert(sizeof(SelectLayer) == 32);

// What the lists of a launch have in common.
struct SelectLists {
  CountTable tokens;
  CountTable keep;
  uint32_t keep_stride;  // elements from list to list; 0: the layer's n_keep
  uint32_t n_lists;
  uint32_t higher_wins;  // of equal keys at the cut
  uint32_t n_sink;       // forced slots at the ends; not for keys
  uint32_t n_recent;
  uint32_t block;  // make_keys: slots with one key; 1: each slot has its own
  uint32_t first_slot;  // first slot of the tokens, as in lists
  uint32_t reserved;
};
static_assert(sizeof(SelectLists) == 64);

enum SelectInput : uint32_t {
  kSelectScores = 0,
  kSelectKeys = 1,    // made by make_keys, pinned already
  kSelectNothing = 2  // every token ranks alike
};

struct SelectParams {
  static constexpr uint32_t kMaxLayers = 120;
  SelectLists lists;
  uint32_t input;     // SelectInput
  uint32_t round;     // long lists only: the digit, 0 to 2
  uint32_t n_chunks;  // long lists only: LongChunks() of the longest
  uint32_t reserved;
  uint64_t scratch;  // long lists only: see topk.h
  SelectLayer layers[kMaxLayers];
};
static_assert(sizeof(SelectParams) <= 4096);

// make_keys takes SelectParams and turns scores into u32 keys at `keep`,
// [n_lists, n_tokens], which may be the scores' memory.

// pin_positions: gives the blocks of protected positions the forced key.
struct PinLayer {
  uint64_t keys;  // u32 [n_lists, n_tokens]
  SlotPositions slots;
  uint32_t n_tokens;
  int32_t first_token_count;
};
static_assert(sizeof(PinLayer) == 40);

struct PinParams {
  static constexpr uint32_t kMaxLayers = 48;
  static constexpr uint32_t kMaxPositions = 500;
  uint32_t n_lists;
  uint32_t n_positions;
  uint32_t block;  // slots that are pinned together
  uint32_t reserved;
  CountTable tokens;
  CountTable kept;  // of the slots
  PinLayer layers[kMaxLayers];
  int32_t positions[kMaxPositions];  // those not held are ignored
};
static_assert(sizeof(PinParams) <= 4096);

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
