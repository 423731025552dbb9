// How much attention slots get.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_WEIGHTS_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_WEIGHTS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/attention.h"
#include "core/simd.h"

namespace kvevict {

// Natural log-sum-exps of query rows, f32: of the first query head, query 0.
struct RowLse {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct AttentionWeights {
  Attention rows;  // of one KV head
  RowLse lse;
  SlotSpan span;          // at a multiple of kAttentionTile
  float* sums = nullptr;  // of the span's slots
  // Elements from a query head's sums to the next one's; 0: they are added up.
  size_t head_stride = 0;
  float* scratch = nullptr;  // AttentionScratchFloats()
};

// Adds each row's weights of the slots to their sums. Deterministic on one CPU target.
void AddAttentionWeights(SimdTarget simd, const AttentionWeights& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_WEIGHTS_H_
