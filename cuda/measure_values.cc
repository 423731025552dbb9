// Measures value rows: one launch for layers with the same layout.
#include "cuda/alignment.h"
#include "cuda/kernels/row_norm.h"
#include "cuda/ops.h"
#include "cuda/row_norms.h"

namespace kvevict::cuda {
namespace {

Status CheckMeasureValues(const Context& context, Stream stream,
                          const MeasureValuesArgs& args) {
  for (const ShapeJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(
        CheckRowsAligned("values", *job.scored->view, job.scored->view->v));
  }
  return RequireReader(context, stream, args.jobs, ModuleId::row_norm,
                       {&kvevict_view::v});
}

Status RunMeasureValues(const Context& context, Stream stream,
                        const MeasureValuesArgs& args) {
  const ValueMeasure measure = args.policy.value_measure;
  RowNormParams p{};
  p.use = kNormPlain;
  p.is_variance = measure == ValueMeasure::kVariance;
  return LaunchRowNorms(context, stream, args.jobs, &kvevict_view::v,
                        &ShapeJob::scores, p,
                        measure == ValueMeasure::kNorm ? KernelId::row_norms
                                                       : KernelId::row_spreads);
}

}  // namespace

const Op<MeasureValuesArgs> kOp_measure_values = {
    RunMeasureValues, Op<MeasureValuesArgs>::NoScratch, CheckMeasureValues};

}  // namespace kvevict::cuda
