// The launches of window_attention_few.cu: constants that its kernels and the
// host share.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FEW_H_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FEW_H_

#include "params.h"
#include "window_attention.h"

namespace kvevict::cuda {

constexpr uint32_t kFewRowThreads = 256;

// The most query rows of a KV head. Tensor cores take 16 in the time that they
// take one. From 9 on, their second pass over the keys costs about as much as
// storing logits and loading them.
constexpr uint32_t MostFewRows(uint32_t q_dtype, uint32_t k_dtype) {
  return HaveMmaElements(q_dtype, k_dtype) ? 8 : 16;
}

// Whether this form takes such rows. In addition keys must be packed, and their
// rows begin at multiples of 16 bytes.
constexpr bool TakesFewRows(uint32_t q_dtype, uint32_t k_dtype,
                            uint32_t head_dim, uint32_t n_rows) {
  const bool is_plain =
      (kPlainDTypes >> q_dtype & 1) != 0 && (kPlainDTypes >> k_dtype & 1) != 0;
  if (!is_plain || n_rows > MostFewRows(q_dtype, k_dtype)) return false;
  // At least 8 threads load a key.
  const uint32_t per_load = PerLoad(static_cast<int>(k_dtype));
  return head_dim % per_load == 0 && head_dim >= 8 * per_load &&
         head_dim <= 256;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FEW_H_
