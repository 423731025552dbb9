// How little keys are like the mean direction of their head.
#ifndef KVEVICT_CORE_KERNELS_KEY_DIFF_H_
#define KVEVICT_CORE_KERNELS_KEY_DIFF_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/kernels/topk.h"
#include "core/simd.h"

namespace kvevict {

struct KeyDiffs {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  float* out = nullptr;  // [n_tokens], of each head: the cosines' negatives
  // KeyDiffScratchFloats(heads.n_heads, head_dim), any content.
  float* scratch = nullptr;
  SideBySide heads = {};
};

size_t KeyDiffScratchFloats(uint32_t n_heads, uint32_t head_dim);

// With u = k / max(|k|, 1e-12) and a the mean of u over the tokens, the cosine is
// k . a / (max(|k|, 1e-8) max(|a|, 1e-8)). A key whose norm is not finite in f32
// gets NaN and adds nothing to the mean. All in f32; u is summed over pieces of
// tokens and then over those, so that every target with a fused multiply-add makes
// the same bits, whatever the layout. Reads every key row twice, the second time
// from the end, where a cache still has them.
void ComputeKeyDiffs(SimdTarget simd, const KeyDiffs& args);

// The same block by block: the first n_keep tokens stay; then come `block` at a time,
// and of those that stayed and those that came the n_keep highest stay, by cosines with
// the mean of the directions of just these.
//
// Those that stay to the end have the score that they had last; one that left -2 less
// the blocks that came after; a key without a direction NaN, which leaves first. The
// mean is kept as a sum of directions in units of 2^-30, rounded towards 0, so that what
// leaves takes off exactly what it brought: it depends on which tokens are there, not on
// how they came to be. Where all fit, it compares them once. Reads the keys that stayed
// and those that came once per block, and the latter twice more.
struct KeyDiffBlocks {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  uint32_t n_keep = 0;  // 0 is taken for 1
  uint32_t block = 0;   // >= 1
  Tie tie = Tie::kLower;
  float* out = nullptr;  // [n_tokens]
  // KeyDiffBlocksBytes(), aligned to 64, any content.
  void* scratch = nullptr;
};

size_t KeyDiffBlocksBytes(uint32_t head_dim, uint32_t n_tokens);

void ComputeKeyDiffBlocks(SimdTarget simd, const KeyDiffBlocks& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_KEY_DIFF_H_
