// The attention that slots receive.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_WEIGHTS_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_WEIGHTS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/attention.h"
#include "core/simd.h"

namespace kvevict {

// The natural log-sum-exps of query rows, f32, from the first query head's
// query 0 on.
struct RowLse {
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct AttentionWeights {
  Attention rows;  // of one KV head
  RowLse lse;
  SlotSpan span;          // begins at a multiple of kAttentionTile
  float* sums = nullptr;  // [slots of the span]
  // Elements from a query head's sums to the next head's; 0: heads are added
  // up.
  size_t head_stride = 0;
  float* scratch = nullptr;  // AttentionScratchFloats()
};

// Adds each row's weights to the sums of the slots. Deterministic on one CPU
// target.
void AddAttentionWeights(SimdTarget simd, const AttentionWeights& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_WEIGHTS_H_
