// Arguments of secure_mass.cu.
#ifndef KVEVICT_CUDA_KERNELS_SECURE_MASS_H_
#define KVEVICT_CUDA_KERNELS_SECURE_MASS_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

struct SecureLayer {
  SelectLayer select;  // its scores are the masses
  uint64_t scores;     // f32 [n_kv_heads, n_tokens], in place
  double share;        // that the budget is of the context
};
static_assert(sizeof(SecureLayer) == 48);

struct SecureParams {
  static constexpr uint32_t kMaxLayers = 80;
  SelectLists lists;  // n_recent is the window
  uint32_t input;     // kSelectScores
  float mass;         // the share that is secured
  uint32_t has_bias;  // less the mean mass of as many slots as the window has
  uint32_t reserved;
  uint64_t shared;  // f32 [n_layers, 2]: the highest score, the share
  SecureLayer layers[kMaxLayers];
};
static_assert(sizeof(SecureParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_SECURE_MASS_H_
