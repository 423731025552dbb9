// Attention that one KV head's keys can expect of queries to come, of which mean and
// covariance are known.
#ifndef KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_H_
#define KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct ExpectedAttention {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t n_sink = 0;  // first ones that stand beside the softmax, and get 0
  uint32_t group = 0;   // query heads that read this KV head
  uint32_t head_dim = 0;
  float scale = 0.0f;  // of the logits
  // Of queries: [group, head_dim], heads so many elements apart.
  const float* mean = nullptr;
  uint64_t mean_stride = 0;
  // [group, head_dim, head_dim], likewise; NULL: none.
  const float* covariance = nullptr;
  uint64_t covariance_stride = 0;
  float* out = nullptr;  // [group, n_tokens], heads so many elements apart
  uint64_t out_stride = 0;
  void* scratch = nullptr;  // ExpectedAttentionScratchBytes(), 64-byte aligned
};

CheckedSize ExpectedAttentionScratchBytes(uint32_t head_dim, uint32_t group);

// out = softmax over the tokens of scale mean.k + scale^2 / 2 k' covariance k, the
// logarithm of the expected exp(scale q.k) of normally distributed queries.
//
// Accumulated in f32. Deterministic on one CPU target; targets differ by rounding. Reads
// every key row once. n_tokens * group * head_dim^2 / 2 multiply-adds, without a covariance
// head_dim.
//
// A NaN in a key, and with a covariance an infinity, makes all weights of its query heads
// NaN; so does a logit of +infinity, or nothing but -infinity. Otherwise a logit of
// -infinity weighs 0, as does one more than 126 (base 2) below the highest.
void ComputeExpectedAttention(SimdTarget simd, const ExpectedAttention& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_EXPECTED_ATTENTION_H_
