// How little one KV head's keys are like their mean direction.
#ifndef KVEVICT_CORE_KERNELS_KEY_DIFF_H_
#define KVEVICT_CORE_KERNELS_KEY_DIFF_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct KeyDiffs {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  float* out = nullptr;  // [n_tokens]: the cosines' negatives
  // KeyDiffScratchFloats(head_dim), any content.
  float* scratch = nullptr;
};

size_t KeyDiffScratchFloats(uint32_t head_dim);

// With u = k / max(|k|, 1e-12) and a the mean of u over the tokens, the cosine is
// k . a / (max(|k|, 1e-8) max(|a|, 1e-8)). A key whose norm is not finite in f32
// gets NaN and adds nothing to the mean. All in f32; u is summed over pieces of
// tokens and then over those, so that every target with a fused multiply-add makes
// the same bits, whatever the layout. Reads every key row twice, the second time
// from the end, where a cache still has them.
void ComputeKeyDiffs(SimdTarget simd, const KeyDiffs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_KEY_DIFF_H_
