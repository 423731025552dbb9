// Scores keys by how unlike they are to the mean direction of their head.
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
  float* out = nullptr;  // [n_tokens] per head: negative cosines
  // KeyDiffScratchFloats(heads.n_heads, head_dim), any content.
  float* scratch = nullptr;
  SideBySide heads = {};
};

size_t KeyDiffScratchFloats(uint32_t n_heads, uint32_t head_dim);

// With u = k / max(|k|, 1e-12) and `a` the mean of u over the tokens, the
// cosine is k . a / (max(|k|, 1e-8) max(|a|, 1e-8)). A key whose norm is not
// finite in f32 gets NaN and adds nothing to the mean. All is in f32. u is
// summed over pieces of tokens and then over the pieces, so that every target
// with a fused multiply-add gives the same bits, whatever the layout. Reads
// every key row twice, the second time from the end, where rows are still in a
// cache.
void ComputeKeyDiffs(SimdTarget simd, const KeyDiffs& args);

// The same block by block. The set begins with the first n_keep tokens. Then
// `block` tokens at a time are added, and the n_keep best of the set stay, by
// cosines with the mean of the directions in the set.
//
// Tokens that stay to the end have their last score. One that left has -2 minus
// the number of blocks that came after. A key without a direction has NaN and
// leaves first. The mean is kept as a sum of directions in units of 2^-30,
// rounded towards 0, so that a token that leaves takes away exactly what it
// added: the sum depends on which tokens are in the set, not on the order of
// changes. If all tokens fit they are compared once. Per block it reads the
// keys of the set once, and those of the block twice more.
struct KeyDiffBlocks {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  uint32_t n_keep = 0;  // 0 counts as 1
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
