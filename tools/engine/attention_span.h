// Query rows against a span of slots.
#ifndef KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_H_
#define KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_H_

#include <cstddef>
#include <cstdint>

#include "kvevict/kvevict.h"

namespace kvevict::tools {

struct AttentionSpan {
  // Some queries of one KV head, or of all of them: their rows lie side by side.
  uint32_t n_kv_heads = 0;
  uint32_t n_queries = 0;
  uint32_t group_size = 0;  // q heads of a KV head
  // Query i of q head h is at queries + i * query_stride + h * k_head_dim.
  const float* queries = nullptr;
  size_t query_stride = 0;
  const uint32_t* n_visible = nullptr;  // [n_queries] slots, from 0
  float scale = 0.0f;
  // The first head's rows.
  const uint8_t* k = nullptr;
  const uint8_t* v = nullptr;
  size_t k_stride_bytes = 0;  // from slot to slot
  size_t v_stride_bytes = 0;
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;
  kvevict_dtype dtype = KVEVICT_DTYPE_F32;
  uint32_t first_slot = 0;  // span [first_slot, last_slot)
  uint32_t last_slot = 0;
  // Softmax state of rows [n_kv_heads, n_queries, group_size], as if the span were
  // everything: with x = log2(e) * scale * q.k, max of x, sum of 2^(x - max), and
  // values weighted by 2^(x - max).
  float* max = nullptr;  // [n_rows()]
  float* sum = nullptr;  // [n_rows()]
  float* out = nullptr;  // [n_rows(), v_head_dim]

  uint32_t rows_per_head() const { return n_queries * group_size; }
  uint32_t n_rows() const { return n_kv_heads * rows_per_head(); }
};

// Keys of a tile. Longer would push the tile out of L1, shorter would rescale more
// often.
inline constexpr uint32_t kTileSlots = 64;

void AttendSpan(const AttentionSpan& span);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_ATTENTION_SPAN_H_
