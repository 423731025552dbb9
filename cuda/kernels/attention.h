// Arguments and launch shapes of attention.cu.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_H_
#define KVEVICT_CUDA_KERNELS_ATTENTION_H_

#include "params.h"

namespace kvevict::cuda {

struct AttendLayer {
  uint64_t queries;      // query 0, query head 0
  uint64_t keys;         // slot 0, head 0
  uint64_t values;       // likewise
  uint64_t block_table;  // i32; paged rows only
  uint64_t sinks;        // f32 [n_q_heads]; 0: none
  uint64_t out;          // query 0, query head 0
  uint64_t lse;          // f32, likewise; 0: none
  uint64_t sums;         // f32, slot 0, head 0; 0: none
  uint32_t n_tokens;
  int32_t first_count;  // index in AttendParams::tokens
};
static_assert(sizeof(AttendLayer) == 72);

struct AttendParams {
  static constexpr uint32_t kMaxLayers = 40;
  CacheRows queries;
  CacheRows keys;
  CacheRows values;  // head_dim: elements of a value
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t out_element_stride;
  int64_t lse_row_stride;
  int64_t lse_head_stride;
  int64_t sum_slot_stride;
  int64_t sum_head_stride;
  // f32 [n_layers, n_kv_heads, n_blocks, n_splits, kAttendRows, 2 +
  // values.head_dim]: a row's reference, its sum, and weighted values.
  uint64_t states;
  CountTable tokens;  // per KV head
  uint32_t out_dtype;
  uint32_t n_queries;
  uint32_t group;
  uint32_t first_block;  // of kAttendRows rows of a head
  uint32_t n_blocks;     // from there on
  uint32_t n_splits;     // of the longest layer
  uint32_t most_splits;  // of a layer, see SlotsOfSplit()
  uint32_t window;       // 0: none
  uint32_t non_causal;
  uint32_t sums_are_shared;  // query heads of a KV head are added up
  // factor of products that gives logits in base 2, or those to cap
  float query_scale;
  float cap;  // 0: none; in base 2
  AttendLayer layers[kMaxLayers];
  // With KV_BIAS each slot has an f32, added to its logits: their layout, and
  // slot 0, head 0 of each layer.
  RowLayout biases;
  uint64_t bias_bases[kMaxLayers];
};
static_assert(sizeof(AttendParams) <= 4096);

constexpr uint32_t kAttendThreads = 256;
// Query rows of a block, and slots that they are multiplied with at a time.
constexpr uint32_t kAttendRows = 16;
constexpr uint32_t kAttendSlots = 64;
// Elements of rows in shared memory at a time, and elements of values that a
// block adds up.
constexpr uint32_t kAttendChunk = 32;
constexpr uint32_t kAttendValues = 128;
constexpr uint32_t kAttendFinishThreads = 128;

// The most splits of a head's slots: as many as give a launch of one layer
// enough blocks for a GPU, with n_others for the heads and blocks of rows.
constexpr uint32_t kAttendBlocks = 256;
constexpr uint32_t MostSplits(uint64_t n_others) {
  if (n_others == 0 || n_others >= kAttendBlocks) return 1;
  return kAttendBlocks / static_cast<uint32_t>(n_others);
}
// The slots of a layer's splits, a multiple of kAttendSlots. They depend only
// on its shape, so that results do not depend on the layers beside it.
constexpr uint32_t SlotsOfSplit(uint32_t n_tokens, uint32_t most_splits) {
  const uint32_t n_tiles = (n_tokens + kAttendSlots - 1) / kAttendSlots;
  const uint32_t of_split = (n_tiles + most_splits - 1) / most_splits;
  return (of_split > 0 ? of_split : 1) * kAttendSlots;
}
constexpr uint32_t SplitsOf(uint32_t n_tokens, uint32_t most_splits) {
  const uint32_t slots = SlotsOfSplit(n_tokens, most_splits);
  return n_tokens == 0 ? 1 : (n_tokens + slots - 1) / slots;
}

// attend_few: the most query rows of a KV head, elements of a row, and slots
// whose weights are in shared memory at a time. Only with f32 it takes more
// than half as many rows; with other dtypes these go to tensor cores.
constexpr uint32_t kFewRows = 8;
constexpr uint32_t kFewElements = 256;
constexpr uint32_t kFewSlots = 1024;
// Whether it takes this many rows, in loads of 16 bytes. It never takes u4, for
// which a thread has no registers.
constexpr bool HasFewLoads(int dtype, uint32_t n_rows) {
  return PerLoad(dtype) <= 16 && (n_rows <= kFewRows / 2 || dtype == kF32);
}
// Whether keys and values have one dtype and loads of 16 bytes, up to 32 a row.
constexpr bool TakeFew(const AttendParams& p) {
  const uint32_t n_rows = p.n_queries * p.group;
  const int dtype = static_cast<int>(p.keys.dtype);
  const uint32_t most =
      32 * PerLoad(dtype) < kFewElements ? 32 * PerLoad(dtype) : kFewElements;
  return n_rows <= kFewRows && p.keys.dtype == p.values.dtype &&
         HasFewLoads(dtype, n_rows > kFewRows / 2 ? kFewRows : kFewRows / 2) &&
         p.keys.wide != 0 && p.values.wide != 0 && p.keys.head_dim <= most &&
         p.values.head_dim <= most;
}

// Floats of a row's state.
constexpr uint32_t AttendStateFloats(uint32_t v_dim) { return 2 + v_dim; }

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_H_
