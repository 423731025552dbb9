// How much of a token's value reaches a layer's output: the weights of
// CriticalKV.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_VALUE_NORMS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_VALUE_NORMS_H_

#include <ggml.h>

#include <cstdint>
#include <vector>

#include "layers.h"

namespace kvevict::llama {

// ||V Wo||_1 of each token, averaged over the query heads of a KV head:
// [n_kv_heads, n_tokens]. `view` has the values, in host memory. `projection`
// is the model's tensor Wo, of any type: [n_q_heads * v_head_dim, outputs].
// Throws if either cannot be read.
std::vector<float> ProjectedValueNorms(const LayerShape& shape,
                                       const kvevict_view& view,
                                       uint32_t n_tokens,
                                       const ggml_tensor* projection,
                                       int32_t n_threads);

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_VALUE_NORMS_H_
