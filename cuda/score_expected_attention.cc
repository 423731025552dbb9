// Scores by the expected attention of future queries: logits, softmax and
// reduction, a launch each for layers with the same layout.
#include <algorithm>

#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/device_state.h"
#include "cuda/kernels/expected_attention.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/query_head_rows.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool ExpectedAttentionJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         HaveLikeBiases(*a.view, *b.view) && InOneTable(a.tokens, b.tokens) &&
         a.n_sink == b.n_sink &&
         a.statistics.head_stride == b.statistics.head_stride &&
         a.query_covariance.head_stride == b.query_covariance.head_stride;
}

ModuleKey ExpectedAttentionScorerOf(const Context& context,
                                    const RowKinds& kinds, bool has_biases) {
  ModuleKey key = ReaderOf(context, ModuleId::expected_attention, kinds);
  if (has_biases) key.Add("KV_BIAS", 1);
  return key;
}
ModuleKey ExpectedAttentionScorerOf(const Context& context,
                                    const ScoreJob& job) {
  const kvevict_view& view = *job.view;
  return ExpectedAttentionScorerOf(context, KindsOf(RowsOf(view, view.k)),
                                   BiasesOf(view) != nullptr);
}

// A launch each for jobs with the same layout. Each job's rows of query heads
// are in scratch, `apart` from the next job's, or in their final place (0).
Status RunExpectedAttentionBatch(const Context& context, Stream stream,
                                 const ScoreArgs& args, Jobs<ScoreJob> batch,
                                 size_t apart) {
  const kvevict_layer_geometry& g = args.layer;
  const ScoreJob& first = batch.front();
  const Counts tokens(first.tokens);
  ExpectedParams p{};
  p.keys = RowsOf(*first.view, first.view->k);
  p.tokens = tokens.table();
  p.mean_stride = first.statistics.head_stride;
  p.covariance_stride = first.query_covariance.head_stride;
  p.group = GroupSize(g);
  p.n_sink = first.n_sink;
  p.scale = args.softmax_scale;
  p.half_square = args.softmax_scale * args.softmax_scale * 0.5f;
  ReduceParams reduce = ReductionOf(args.policy.group, p.group);
  reduce.n_out_rows = g.n_kv_heads;
  reduce.tokens = p.tokens;
  const kvevict_plane* const biases = BiasesOf(*first.view);
  if (biases != nullptr) p.biases = LayoutOf(*first.view, *biases);
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    if (biases != nullptr) {
      p.bias_bases[i] = BaseOf(*BiasesOf(*job.view));
    }
    const uint64_t rows = apart == 0
                              ? AddressOf(job.rows)
                              : AddressOf(args.scratch.data()) + i * apart;
    const uint32_t n_tokens = job.tokens.most;
    const int32_t first_count = tokens.FirstOf(job.tokens);
    p.layers[i] = {BaseOf(job.view->k),
                   AddressOf(job.view->block_table),
                   AddressOf(job.statistics.data),
                   AddressOf(job.query_covariance.data),
                   rows,
                   n_tokens,
                   first_count};
    reduce.layers[i] = {rows, AddressOf(job.rows), n_tokens, first_count};
  }
  const uint32_t longest = LongestOf(batch);
  const ModuleKey reader = ExpectedAttentionScorerOf(context, first);
  KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::expected_logits,
                            {BlocksFor(longest, kExpectedKeys), g.n_kv_heads,
                             Size(batch), kExpectedThreads},
                            p));
  KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::expected_softmax,
                            {g.n_q_heads, Size(batch), 1, kExpectedThreads},
                            p));
  if (apart == 0) return Status();
  return LaunchReduction(context, stream, reduce, longest, Size(batch));
}

Status CheckExpectedAttention(const Context& context, Stream stream,
                              const ScoreArgs& args) {
  KV_RETURN_IF_ERROR(CheckReading(context, stream, args, {}));
  for (const ScoreJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckBiasesAligned(*job.view));
    KV_RETURN_IF_ERROR(
        Require(context, stream, ExpectedAttentionScorerOf(context, job)));
  }
  return Status();
}

Status RunExpectedAttention(const Context& context, Stream stream,
                            const ScoreArgs& args) {
  size_t most = ExpectedParams::kMaxLayers;
  const size_t apart = QueryHeadRowsApart(args);
  if (apart > 0) most = std::min(most, args.scratch.size() / apart);
  return ForEachBatch(args.jobs, most, ExpectedAttentionJobsGoTogether,
                      [&](Jobs<ScoreJob> batch) {
                        return RunExpectedAttentionBatch(context, stream, args,
                                                         batch, apart);
                      });
}

// Those that read no biases are prepared for every plan.
Status PrepareExpectedAttention(const Context& context,
                                const kvevict_layer_geometry&, const Policy&,
                                const ScoreTraits& traits) {
  if (!traits.has_biases) return Status();
  return Require(context, DeviceOf(context).stream(),
                 ExpectedAttentionScorerOf(context, RowKinds{}, true));
}

}  // namespace

const ScoreOp kOp_score_expected_attention = {
    RunExpectedAttention, QueryHeadRowsScratch<Signal::kExpectedAttention>,
    CheckExpectedAttention, PrepareExpectedAttention};

}  // namespace kvevict::cuda
