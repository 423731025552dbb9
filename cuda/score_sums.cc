// Scores by attention sums: the caller's, or sums computed from queries in
// scratch.
#include <algorithm>

#include "core/dtype.h"
#include "cuda/alignment.h"
#include "cuda/fill_scores.h"
#include "cuda/kernels/fill_scores.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"
#include "cuda/score_window.h"

namespace kvevict::cuda {
namespace {

bool CanReadQueries(const kvevict_layer_geometry& g) {
  return InfoOf(static_cast<DType>(g.k_dtype)).can_score &&
         InfoOf(static_cast<DType>(g.q_dtype)).is_plain();
}

// Bytes of f32 [n_layers, n_q_heads, n_tokens], after the scratch that
// computing the sums needs.
ScratchNeeds SumsScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  if (!CanReadQueries(g)) return CheckedSize(0);
  return QuerySumScratchBytes(g, size.n_layers, size.n_tokens) +
         CheckedSize(size.n_layers) * CheckedSize(g.n_q_heads) *
             CheckedSize(size.n_tokens) * CheckedSize(sizeof(float));
}

bool AreAlikeBySource(const ScoreJob& a, const ScoreJob& b) {
  return (a.queries.n_rows == 0) == (b.queries.n_rows == 0);
}

Status PrepareSums(const Context& context, const kvevict_layer_geometry& g,
                   const Policy&, const ScoreTraits& traits) {
  if (!CanReadQueries(g)) return Status();
  return PrepareQuerySums(context, g, traits);
}

Status CheckSums(const Context& context, Stream stream, const ScoreArgs& args) {
  KV_RETURN_IF_ERROR(CheckFill(context, stream, args));
  for (const ScoreJob& job : args.jobs) {
    if (job.queries.n_rows == 0) continue;
    KV_RETURN_IF_ERROR(
        CheckQuerySums(context, stream, args, Jobs<ScoreJob>(job)));
  }
  return Status();
}

Status Fill(const Context& context, Stream stream, const ScoreArgs& args,
            Jobs<ScoreJob> jobs) {
  ScoreArgs of_jobs = args;
  of_jobs.jobs = jobs;
  FillScoresParams p{};
  p.is_max = args.policy.group == KVEVICT_REDUCE_MAX;
  p.divides = args.policy.rows == KVEVICT_REDUCE_MEAN;
  return FillScores(context, stream, of_jobs, KernelId::sum_scores,
                    &ScoreJob::sums, p);
}

// Takes at most FillScoresParams::kMaxLayers jobs with queries.
Status FillBySums(const Context& context, Stream stream, const ScoreArgs& args,
                  Jobs<ScoreJob> jobs) {
  const uint64_t sums =
      AddressOf(args.scratch.data()) +
      QuerySumScratchBytes(args.layer, Size(args.jobs), args.n_tokens).value();
  KV_RETURN_IF_ERROR(SumQueries(context, stream, args, jobs, sums));
  ScoreJob made[FillScoresParams::kMaxLayers];
  uint64_t next = sums;
  for (size_t i = 0; i < jobs.size(); ++i) {
    made[i] = jobs[i];
    made[i].sums = {reinterpret_cast<const float*>(next), jobs[i].tokens.most};
    next +=
        uint64_t{args.layer.n_q_heads} * jobs[i].tokens.most * sizeof(float);
  }
  return Fill(context, stream, args,
              std::span<const ScoreJob>(made, jobs.size()));
}

Status RunSums(const Context& context, Stream stream, const ScoreArgs& args) {
  return ForEachBatch(args.jobs, FillScoresParams::kMaxLayers, AreAlikeBySource,
                      [&](Jobs<ScoreJob> jobs) {
                        if (jobs[0].queries.n_rows == 0) {
                          return Fill(context, stream, args, jobs);
                        }
                        return FillBySums(context, stream, args, jobs);
                      });
}

}  // namespace

const ScoreOp kOp_score_sums = {RunSums, SumsScratch, CheckSums, PrepareSums};

}  // namespace kvevict::cuda
