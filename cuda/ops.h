// The operations of core/ops.inc as launches.
#ifndef KVEVICT_CUDA_OPS_H_
#define KVEVICT_CUDA_OPS_H_

#include "core/backend.h"
#include "core/checked_math.h"
#include "core/status.h"

namespace kvevict::cuda {

#define KVEVICT_OP(name, Args) \
  Status Run_##name(const Context& context, Stream stream, const Args& args);
#define KVEVICT_SCORE_OP(name) extern const ScoreOp kOp_##name;
#include "core/ops.inc"

// See Backend::shape_and_select.
Status ShapeAndSelect(const Context& context, Stream stream,
                      const ShapeArgs& shape, const SelectArgs& select);

// See Backend::check_weighing.
Status CheckWeighing(const Context& context, Stream stream,
                     const ScoreArgs& args);

// See Backend::check_diversifying.
Status CheckDiversifying(const Context& context, Stream stream,
                         const ScoreArgs& args);

// See Backend::check_varying.
Status CheckVarying(const Context& context, Stream stream,
                    const ScoreArgs& args);

// See Backend::check_merging.
Status CheckMerging(const Context& context, Stream stream, Jobs<MoveJob> jobs);

// See Backend::check_requantizing.
Status CheckRequantizing(const Context& context, Stream stream,
                         Jobs<MoveJob> jobs);

// See Backend::check_rotating.
Status CheckRotating(const Context& context, Stream stream,
                     Jobs<RotateJob> jobs);

// See Backend::check_attending.
Status CheckAttending(const Context& context, Stream stream,
                      Jobs<AttendJob> jobs);

// The modules of shaping, and of all selections, for what comes before.
Status RequireShaping(const Context& context, Stream stream);
Status RequireSelection(const Context& context, Stream stream);

ScratchNeeds NoScratch(const Context& context,
                       const kvevict_layer_geometry& geometry,
                       const Policy& policy, uint32_t n_layers,
                       uint32_t n_tokens);
ScratchNeeds DiversifyScratchBytes(const Context& context,
                                   const kvevict_layer_geometry& geometry,
                                   const Policy& policy, uint32_t n_layers,
                                   uint32_t n_tokens);
ScratchNeeds VaryScratchBytes(const kvevict_layer_geometry& geometry,
                              const Policy& policy, uint32_t n_layers,
                              uint32_t n_tokens);
CheckedSize SelectScratchBytes(const Context& context, uint32_t n_tokens,
                               uint64_t n_lists);

ScratchNeeds MergeScratchBytes(const Context& context, const MergeShape& shape,
                               uint32_t n_layers);
CheckedSize CompactScratchBytes(const Context& context, Jobs<MoveJob> jobs);
CheckedSize ReorderScratchBytes(const Context& context, const MoveJob& job);
ScratchNeeds AttendScratchBytes(const Context& context, Jobs<AttendJob> jobs);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_OPS_H_
