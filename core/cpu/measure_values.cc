// Measures value rows. A work item is some tokens.
#include "core/cpu/row_runs.h"
#include "core/kernels/row_norm.h"
#include "core/kernels/row_spread.h"

namespace kvevict::cpu {
namespace {

Status RunMeasureValues(const Context& context, Stream,
                        const MeasureValuesArgs& args) {
  const ValueMeasure measure = args.policy.value_measure;
  const uint32_t head_dim = args.layer.v_head_dim;
  ForEachRowRun(
      context, args, &kvevict_view::v,
      [&](const ShapeJob& job, const RowRun& run, uint32_t) {
        float* const out = job.scores +
                           uint64_t{run.head} * job.scored->tokens.most +
                           run.first;
        if (measure == ValueMeasure::kNorm) {
          ComputeRowNorms(context.simd(), {run.rows, run.first, run.n, head_dim,
                                           false, out, run.heads});
        } else {
          ComputeRowSpreads(
              context.simd(),
              {run.rows, run.first, run.n, head_dim,
               measure == ValueMeasure::kVariance, out, run.heads});
        }
      });
  return Status();
}

}  // namespace

const Op<MeasureValuesArgs> kOp_measure_values = {RunMeasureValues};

}  // namespace kvevict::cpu
