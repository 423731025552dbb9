// Reduces several rows of scores to one: a launch of reduce_rows.
#ifndef KVEVICT_CUDA_REDUCE_ROWS_H_
#define KVEVICT_CUDA_REDUCE_ROWS_H_

#include <cstdint>

#include "core/backend.h"
#include "core/status.h"
#include "cuda/kernels/pool1d.h"

namespace kvevict::cuda {

// Parameters that reduce n_terms rows to one. The caller fills in the rest.
ReduceParams ReductionOf(kvevict_reduce reduce, uint32_t n_terms);

Status LaunchReduction(const Context& context, Stream stream,
                       const ReduceParams& p, uint32_t longest,
                       uint32_t n_layers);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_REDUCE_ROWS_H_
