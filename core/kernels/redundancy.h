// Subtracts the redundancy of one KV head's keys, how similar they are to each
// other, from their scores.
#ifndef KVEVICT_CORE_KERNELS_REDUNDANCY_H_
#define KVEVICT_CORE_KERNELS_REDUNDANCY_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct Redundancy {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t head_dim = 0;
  float threshold = 0;      // cosines above it are similar; >= 0
  float score_weight = 1;   // factor of `scores`
  float weight = 0;         // factor of the redundancy
  float* scores = nullptr;  // [n_tokens]
  // RedundancyScratchBytes(), aligned to 8, any content.
  uint8_t* scratch = nullptr;
};

size_t RedundancyScratchBytes(uint32_t n_tokens, uint32_t head_dim);

// scores[j] = score_weight * scores[j] - weight * R[j]; +infinity stays.
//
// With u = k / (|k| + 1e-8) and C[i, j] = u_i . u_j, 0 on the diagonal, each
// row i leaves out the entry of one column: that of the last j with C[i, j] >
// threshold, or of column 0 if there is none. R is the softmax over the tokens
// of the columns' means. A key whose norm is not finite in f32 gets NaN and is
// in no mean: its cosines count as 0.
//
// A column's sum is u_j . sum(u) minus the entries left out, so cosines are
// computed only to find those: rows in blocks, keys from the last one down,
// until every row of a block has found one. Takes O(n_tokens * head_dim)
// multiply-adds at least, n_tokens / 2 times that if no keys are similar, and
// no n_tokens^2 memory. If bytes are multiplied four times as fast as floats,
// products of rounded keys are computed first, and cosines only of those near
// the threshold, with the same result. Every product is summed in the order of
// its elements, and what is left out in fixed point, so that every target with
// a fused multiply-add gives the same bits, whatever the layout.
void SubtractRedundancy(SimdTarget simd, const Redundancy& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REDUNDANCY_H_
