// Attention of the observation window over one KV head's keys.
#ifndef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"

namespace kvevict {

struct WindowAttention {
  // Queries of the group: head g of the group, window row w is
  // queries.Row(w) + g * query_head_stride.
  RowSource queries;
  int64_t query_head_stride = 0;
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;  // >= window
  uint32_t window = 0;    // >= 1; row w is the query of token n_tokens - window + w
  uint32_t group = 0;     // query heads that read this KV head
  uint32_t head_dim = 0;
  float scale = 0.0f;  // of the logits
  // [group, n_tokens]: for each query head and key, the sum over the window's rows
  // of the causal softmax weights.
  float* out = nullptr;
  // WindowAttentionScratchBytes() bytes, 64-byte aligned.
  void* scratch = nullptr;
};

// Scratch for one call; independent of the CPU target.
size_t WindowAttentionScratchBytes(uint32_t n_tokens, uint32_t window,
                                   uint32_t group, uint32_t head_dim);

// Exact two-pass softmax over tiles of keys; reads every key row once. NaN in a
// row of queries or in a key makes that row's or key's weights NaN. Deterministic.
void ComputeWindowAttention(const WindowAttention& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
