// Arguments of best_scores.cu.
#ifndef KVEVICT_CUDA_KERNELS_BEST_SCORES_H_
#define KVEVICT_CUDA_KERNELS_BEST_SCORES_H_

#include "params.h"
#include "topk.h"

namespace kvevict::cuda {

struct BestLayer {
  SelectLayer select;  // `keep` is not used
  uint64_t scores;     // f32 [n_lists, n_tokens]: normalize reads them
  // output, likewise; for normalize may be scores or select.scores
  uint64_t out;
  uint32_t n_best;  // normalize: after what must stay; secure: at least
  uint32_t reserved;
};
static_assert(sizeof(BestLayer) == 56);

struct BestParams {
  static constexpr uint32_t kMaxLayers = 70;
  SelectLists lists;
  uint32_t input;  // SelectInput: scores or keys
  float share;     // secure: part of what a list keeps
  BestLayer layers[kMaxLayers];
};
static_assert(sizeof(BestParams) <= 4096);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_BEST_SCORES_H_
