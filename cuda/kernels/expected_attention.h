// Launch shapes of expected_attention.cu.
#ifndef KVEVICT_CUDA_KERNELS_EXPECTED_ATTENTION_H_
#define KVEVICT_CUDA_KERNELS_EXPECTED_ATTENTION_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kExpectedThreads = 256;
// Keys of a block of expected_logits, and their elements in shared memory at a
// time.
constexpr uint32_t kExpectedKeys = 64;
constexpr uint32_t kExpectedChunk = 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_EXPECTED_ATTENTION_H_
