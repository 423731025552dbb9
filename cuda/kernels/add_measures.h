// Arguments of add_measures.cu.
#ifndef KVEVICT_CUDA_KERNELS_ADD_MEASURES_H_
#define KVEVICT_CUDA_KERNELS_ADD_MEASURES_H_

#include "params.h"
#include "window_attention.h"

namespace kvevict::cuda {

struct AddMeasuresParams {
  static constexpr uint32_t kMaxLayers = ScoreParams::kMaxLayers;
  uint64_t parts;            // f32 [n_layers, n_parts, 2]
  uint32_t n_parts;          // per layer
  float scale;               // factor of the first of two
  uint64_t out[kMaxLayers];  // f32 [2]
};
static_assert(sizeof(AddMeasuresParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ADD_MEASURES_H_
