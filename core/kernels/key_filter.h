// Scores keys by a direction of their head.
#ifndef KVEVICT_CORE_KERNELS_KEY_FILTER_H_
#define KVEVICT_CORE_KERNELS_KEY_FILTER_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct KeyFilter {
  RowSource keys;
  uint32_t first_token = 0;  // of n_tokens
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  const float* filter = nullptr;  // [head_dim] per head
  // [n_tokens] per head: negative dot products.
  float* out = nullptr;
  // KeyFilterScratchFloats(heads.n_heads, head_dim), any content.
  float* scratch = nullptr;
  SideBySide heads = {};
  size_t filter_stride = 0;  // floats between heads
};

size_t KeyFilterScratchFloats(uint32_t n_heads, uint32_t head_dim);

// Accumulated in f32 in an order that depends only on head_dim, so every target
// with a fused multiply-add gives the same bits, whatever the layout. Reads
// every key row once.
void FilterKeys(SimdTarget simd, const KeyFilter& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_KEY_FILTER_H_
