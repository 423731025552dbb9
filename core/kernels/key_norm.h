// Euclidean norms of one KV head's keys.
#ifndef KVEVICT_CORE_KERNELS_KEY_NORM_H_
#define KVEVICT_CORE_KERNELS_KEY_NORM_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct KeyNorms {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  float* out = nullptr;  // [n_tokens]: the norms' negatives
};

// Accumulated in f32 in an order that depends on head_dim alone: of f16 and bf16
// keys every target makes the same bits, since their squares are exact in f32. A
// norm beyond f32's range is infinite. Reads every key row once.
void ComputeKeyNorms(SimdTarget simd, const KeyNorms& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_KEY_NORM_H_
