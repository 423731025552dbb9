// The operations of core/ops.inc as launches.
#ifndef KVEVICT_CUDA_OPS_H_
#define KVEVICT_CUDA_OPS_H_

#include "core/backend.h"
#include "core/status.h"

namespace kvevict::cuda {

#define KVEVICT_OP(name, Args) extern const Op<Args> kOp_##name;
#define KVEVICT_SCORE_OP(name) extern const ScoreOp kOp_##name;
#include "core/ops.inc"

// Finds the modules of shaping and of all selections, for operations that run
// before them.
Status RequireShaping(const Context& context, Stream stream);
Status RequireSelection(const Context& context, Stream stream);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_OPS_H_
