// Attention of the observation window over one KV head's keys.
#ifndef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct WindowAttention {
  // Queries of the group: head g of the group, window row w is
  // queries.Row(w) + g * query_head_stride.
  RowSource queries;
  int64_t query_head_stride = 0;
  RowSource keys;         // n_tokens rows
  uint32_t n_tokens = 0;  // >= window
  uint32_t window = 0;    // >= 1; row w is token n_tokens - window + w
  uint32_t group = 0;     // query heads that read this KV head
  uint32_t head_dim = 0;
  float scale = 0.0f;  // of the logits
  // [group, n_tokens]: for each query head and key, the sum over the window's
  // rows of the causal softmax weights.
  float* out = nullptr;
  // At least WindowAttentionScratchBytes().least, 64-byte aligned.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};

// Scratch for one call; independent of the CPU target. SIZE_MAX if it does not
// fit in size_t. At best all exponentials: n_tokens * window * group floats; at
// least a 64th of that.
struct WindowAttentionScratchSize {
  size_t least;
  size_t best;
};
WindowAttentionScratchSize WindowAttentionScratchBytes(uint32_t n_tokens,
                                                       uint32_t window,
                                                       uint32_t group,
                                                       uint32_t head_dim);

// Exact two-pass softmax over tiles of keys, in f32; reads every key row once,
// and computes the exponentials that scratch has no room for a second time.
// Deterministic on one CPU target, whatever the scratch; targets differ by
// rounding.
//
// NaN and infinity do what the formula says. A row that sees a logit of NaN or
// +infinity, or nothing but -infinity, weighs every key that it sees by NaN. So
// one NaN in a key makes all rows that see it NaN, and with them out for all
// keys these rows see; one NaN in a query does so for its query head. Otherwise
// a logit of -infinity weighs 0, as does one more than 126 (base 2) below the
// row's highest. Keys that a row does not see never matter to it.
void ComputeWindowAttention(SimdTarget simd, const WindowAttention& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_H_
