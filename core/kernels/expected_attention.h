// The attention that one KV head's keys can expect from future queries with
// known mean and covariance.
#ifndef KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_H_
#define KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct ExpectedAttention {
  RowSource keys;    // n_tokens rows
  RowSource biases;  // f32, added to logits; base nullptr: none
  uint32_t n_tokens = 0;
  uint32_t n_sink = 0;  // first tokens, which are not in the softmax and get 0
  uint32_t group = 0;   // query heads that read this KV head
  uint32_t head_dim = 0;
  float scale = 0.0f;  // of the logits
  // The mean of queries: [group, head_dim], heads mean_stride elements apart.
  const float* mean = nullptr;
  uint64_t mean_stride = 0;
  // [group, head_dim, head_dim], likewise; NULL: none.
  const float* covariance = nullptr;
  uint64_t covariance_stride = 0;
  float* out = nullptr;  // [group, n_tokens], heads out_stride elements apart
  uint64_t out_stride = 0;
  void* scratch = nullptr;  // ExpectedAttentionScratchBytes(), 64-byte aligned
};

CheckedSize ExpectedAttentionScratchBytes(uint32_t head_dim, uint32_t group);

// out = softmax over the tokens of scale mean.k + scale^2 / 2 k' covariance k +
// bias, the logarithm of the expected exp(scale q.k) of normally distributed queries.
//
// Accumulated in f32. Deterministic on one CPU target; targets differ by
// rounding. Reads every key row once. Takes n_tokens * group * head_dim^2 / 2
// multiply-adds, or n_tokens * group * head_dim without a covariance.
//
// A NaN in a key, and with a covariance an infinity, makes all weights of its
// query heads NaN. So does a logit of +infinity, or if all logits are
// -infinity. Otherwise a logit of -infinity has weight 0, as does one more than
// 126 (base 2) below the highest. With biases, which hide slots, logits that all
// are -infinity have weight 0.
void ComputeExpectedAttention(SimdTarget simd, const ExpectedAttention& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_H_
