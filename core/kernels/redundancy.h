// How much one KV head's keys are like each other, taken off their scores.
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
  float score_weight = 1;   // of what stands in `scores`
  float weight = 0;         // of the redundancy that is taken off
  float* scores = nullptr;  // [n_tokens]
  // RedundancyScratchBytes(), aligned to 8, any content.
  uint8_t* scratch = nullptr;
};

size_t RedundancyScratchBytes(uint32_t n_tokens, uint32_t head_dim);

// scores[j] = score_weight * scores[j] - weight * R[j]; +infinity stays.
//
// With u = k / (|k| + 1e-8) and C[i, j] = u_i . u_j, 0 on the diagonal, each row i has
// the entry of one column left out: of the last j with C[i, j] > threshold, of column 0
// if there is none. R is the softmax over the tokens of the columns' means. A key whose
// norm is not finite in f32 gets NaN, and is in no mean: its cosines count as 0.
//
// The columns' sums are u_j . sum(u) less the entries left out, so that cosines are
// computed only to find those: rows in blocks, keys from the last on, until every row of
// a block has met one. O(n_tokens * head_dim) multiply-adds at least, n_tokens / 2 times
// that where no keys are similar; no n_tokens^2 memory. Where bytes are multiplied four
// times as fast as floats, these are of rounded keys, and cosines are computed of those
// that come near the threshold: the same ones are found. Every product is added up in the
// order of its elements, and what is left out in fixed point, so that every target with
// a fused multiply-add makes the same bits, whatever the layout.
void SubtractRedundancy(SimdTarget simd, const Redundancy& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_REDUNDANCY_H_
