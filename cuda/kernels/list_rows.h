// Arguments of list_rows.cu.
#ifndef KVEVICT_CUDA_KERNELS_LIST_ROWS_H_
#define KVEVICT_CUDA_KERNELS_LIST_ROWS_H_

#include "params.h"

namespace kvevict::cuda {

// What window_attention.cu reads of a row with KV_LISTED.
struct ListedRow {
  uint32_t n_visible;  // the row sees this many first keys
  float weight;        // factor of its weights
};
static_assert(sizeof(ListedRow) == 8);

// Rows in any strides, in bytes.
struct ListedSource {
  int64_t row_stride;
  int64_t head_stride;
  int64_t element_stride;
};

struct ListRowsLayer {
  uint64_t window;      // row 0 of the window's ring, head 0
  uint64_t reference;   // row 0 of the reference queries, head 0
  uint64_t positions;   // i32, of reference queries; 0: they see every key
  uint32_t n_tokens;    // the longest head
  int32_t first_count;  // index in ListRowsParams::tokens
  SlotPositions slots;
};
static_assert(sizeof(ListRowsLayer) == 56);

struct ListRowsParams {
  static constexpr uint32_t kMaxLayers = 64;
  uint64_t rows;  // out: [n_layers, n_q_heads, n_rows, n_elements], packed
  uint64_t list;  // out: ListedRow [n_layers, n_kv_heads, n_rows]
  ListedSource window;
  ListedSource reference;
  uint32_t n_elements;
  uint32_t element_bytes;  // 2 or 4
  uint32_t n_own;          // first rows, which are the window's
  // Window row w is stored row (first_row + w) % ring_rows.
  uint32_t first_row;
  uint32_t ring_rows;
  uint32_t group;          // query heads per KV head
  uint32_t window_tokens;  // last tokens that are the window's
  uint32_t past_only;      // rows see only the keys before the window
  uint32_t
      weigh_by_past;  // weights are multiplied by the keys before the row's
  float own_factor;
  float reference_factor;
  uint32_t slot_lists;  // 1 if heads share their slots, else n_kv_heads
  CountTable tokens;    // per KV head
  CountTable kept;      // of slots, per list
  ListRowsLayer layers[kMaxLayers];
};
static_assert(sizeof(ListRowsParams) <= 4096);

// Grid (n_rows, n_q_heads, n_layers).
constexpr uint32_t kListRowsThreads = 64;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_LIST_ROWS_H_
