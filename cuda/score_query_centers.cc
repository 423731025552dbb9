// Compares keys with the centers of queries: scores, their scale and reduction,
// a launch each for layers with the same layout.
#include <algorithm>

#include "core/view/rope.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/pool1d.h"
#include "cuda/kernels/query_centers.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/query_head_rows.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(kMaxRopeFrequencies == CentersParams::kMaxPairs);

bool QueryCentersJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         InOneTable(a.tokens, b.tokens) && a.n_sink == b.n_sink &&
         a.next_position == b.next_position &&
         a.statistics.head_stride == b.statistics.head_stride;
}

// A launch each for jobs with the same layout. Each job's rows of query heads
// are in scratch, `apart` from the next job's, or in their final place (0).
Status RunQueryCentersBatch(const Context& context, Stream stream,
                            const ScoreArgs& args, Jobs<ScoreJob> batch,
                            size_t apart) {
  const kvevict_layer_geometry& g = args.layer;
  const ScoreJob& first = batch.front();
  const Counts tokens(first.tokens);
  CentersParams p{};
  p.tokens = tokens.table();
  p.center_stride = first.statistics.head_stride;
  p.group = GroupSize(g);
  p.n_sink = first.n_sink;
  p.n_pairs = args.rope.n_frequencies();
  p.is_interleaved = args.rope.is_interleaved() ? 1 : 0;
  p.keys =
      PairRows(RowsOf(*first.view, first.view->k), p.n_pairs, p.is_interleaved);
  Complex turns[kMaxRopeFrequencies];
  args.rope.TurnsAt(first.next_position, turns);
  for (uint32_t f = 0; f < p.n_pairs; ++f) {
    p.turns[f] = {static_cast<float>(turns[f].re),
                  static_cast<float>(turns[f].im)};
  }
  ReduceParams reduce = ReductionOf(args.policy.group, p.group);
  reduce.n_out_rows = g.n_kv_heads;
  reduce.tokens = p.tokens;
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    const uint64_t rows = apart == 0
                              ? AddressOf(job.rows)
                              : AddressOf(args.scratch.data()) + i * apart;
    const uint32_t n_tokens = job.tokens.most;
    const int32_t first_count = tokens.FirstOf(job.tokens);
    p.layers[i] = {BaseOf(job.view->k),
                   AddressOf(job.view->block_table),
                   AddressOf(job.statistics.data),
                   rows,
                   n_tokens,
                   first_count};
    reduce.layers[i] = {rows, AddressOf(job.rows), n_tokens, first_count};
  }
  const uint32_t longest = LongestOf(batch);
  const ModuleKey reader =
      ReaderOf(context, ModuleId::query_centers, KindsOf(p.keys));
  KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::center_scores,
                            {BlocksFor(longest, CentersBlockRows(p.keys.lanes)),
                             g.n_kv_heads, Size(batch), kCentersThreads},
                            p));
  KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::standardise_rows,
                            {g.n_q_heads, Size(batch), 1, kCentersThreads}, p));
  if (apart == 0) return Status();
  return LaunchReduction(context, stream, reduce, longest, Size(batch));
}

Status CheckQueryCenters(const Context& context, Stream stream,
                         const ScoreArgs& args) {
  return CheckReading(context, stream, args, {ModuleId::query_centers});
}

Status RunQueryCenters(const Context& context, Stream stream,
                       const ScoreArgs& args) {
  size_t most = CentersParams::kMaxLayers;
  const size_t apart = QueryHeadRowsApart(args);
  if (apart > 0) most = std::min(most, args.scratch.size() / apart);
  return ForEachBatch(
      args.jobs, most, QueryCentersJobsGoTogether, [&](Jobs<ScoreJob> batch) {
        return RunQueryCentersBatch(context, stream, args, batch, apart);
      });
}

}  // namespace

const ScoreOp kOp_score_query_centers = {
    RunQueryCenters, QueryHeadRowsScratch<Signal::kQueryCenters>,
    CheckQueryCenters};

}  // namespace kvevict::cuda
