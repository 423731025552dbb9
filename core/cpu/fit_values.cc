// Fits values to queries. A work item is a layer and KV head.
#include "core/kernels/fit_values.h"

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/policy/policy.h"
#include "core/signals/signal_inputs.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

// The sizes of a KV head's rows.
Attention RowsOf(const kvevict_layer_geometry& g, const Policy& policy) {
  Attention rows;
  rows.group = GroupSize(g);
  rows.k_dim = g.k_head_dim;
  rows.v_dim = g.v_head_dim;
  rows.n_queries = FitRows(policy);
  rows.non_causal = true;
  return rows;
}

ScratchNeeds ScratchOfFit(const Context& context, const LayerSize& size) {
  return SharesOf(context,
                  QueryTableBytes(FitRows(size.policy)) +
                      FitScratchBytes(RowsOf(size.geometry, size.policy),
                                      size.n_tokens, FitsBiases(size.policy)));
}

// The queries that values are fitted to.
QueryRows QueriesOf(const Policy& policy, const ScoreJob& job) {
  return policy.reference > 0 ? QueryRowsOf(*job.reference, policy.reference)
                              : job.queries;
}

void FitHead(const Context& context, const FitArgs& args, size_t i,
             uint32_t head, uint8_t* scratch) {
  const kvevict_layer_geometry& g = args.layer;
  const MoveJob& job = args.rows[i];
  const QueryRows queries = QueriesOf(args.policy, args.queries[i]);
  const float* const sinks = args.queries[i].sinks;
  FitValues fit;
  fit.rows = RowsOf(g, args.policy);
  fit.rows.queries = SourceOf(queries, reinterpret_cast<int32_t*>(scratch));
  fit.rows.query_head_stride = queries.head_stride;
  fit.rows.queries.base += int64_t{head} * GroupSize(g) * queries.head_stride;
  fit.rows.keys = HeadRows(*job.view, job.view->k, head);
  fit.rows.values = HeadRows(*job.view, job.view->v, head);
  fit.rows.biases = HeadBiases(*job.view, head);
  fit.rows.n_tokens = job.tokens.Of(head);
  fit.rows.scale = args.softmax_scale;
  fit.rows.softcap = g.logit_softcap;
  if (sinks != nullptr) fit.sinks = sinks + head * GroupSize(g);
  fit.keep = job.keep.ListOf(head);
  fit.n_keep = job.keep.CountOf(head);
  fit.ridge = args.policy.fit_ridge;
  fit.fits_biases = FitsBiases(args.policy);
  fit.scratch = scratch + QueryTableBytes(FitRows(args.policy)).value();
  FitKeptValues(context.simd(), fit);
}

Status Run(const Context& context, Stream, const FitArgs& args) {
  const uint32_t n_heads = args.layer.n_kv_heads;
  context.ParallelFor(static_cast<uint32_t>(args.rows.size() * n_heads),
                      [&](uint32_t item, uint32_t worker) {
                        FitHead(context, args, item / n_heads, item % n_heads,
                                ShareOf(context, args.scratch, worker).data());
                      });
  return Status();
}

}  // namespace

const Op<FitArgs> kOp_fit_values = {Run, ScratchOfFit};

}  // namespace kvevict::cpu
