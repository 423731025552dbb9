// A block of query rows against a span of one KV head's slots.
#ifndef KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_H_
#define KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_H_

#include <cstddef>
#include <cstdint>

#include "kvevict/kvevict.h"

namespace kvevict::tools {

struct AttentionSpan {
  // Row r is head r % group_size of the group, query r / group_size.
  const float* queries = nullptr;
  size_t query_stride = 0;  // from one query to the next
  uint32_t group_size = 0;  // rows of one query, head_dim floats apart
  uint32_t n_rows = 0;
  const uint32_t* n_visible = nullptr;  // [n_rows / group_size]
  float scale = 0.0f;
  // This KV head's rows.
  const uint8_t* k = nullptr;
  const uint8_t* v = nullptr;
  size_t k_stride_bytes = 0;
  size_t v_stride_bytes = 0;
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;
  kvevict_dtype dtype = KVEVICT_DTYPE_F32;
  uint32_t first_slot = 0;  // span [first_slot, last_slot)
  uint32_t last_slot = 0;
  // Softmax state, as if the span were everything: with x = log2(e) * scale * q.k,
  // max of x, sum of 2^(x - max), and values weighted by 2^(x - max).
  float* max = nullptr;  // [n_rows]
  float* sum = nullptr;  // [n_rows]
  float* out = nullptr;  // [n_rows, v_head_dim]
};

// Keys of a tile. Longer would push the tile out of L1, shorter would rescale more
// often.
inline constexpr uint32_t kTileSlots = 64;

void AttendSpan(const AttentionSpan& span);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_H_
