// Compares keys with the centers of queries. A work item is a layer and KV
// head.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/query_centers.h"
#include "core/view/rope.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds QueryCentersScratch(const Context& context,
                                 const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const uint32_t n_pairs = std::min(g.k_head_dim / 2, kMaxRopeFrequencies);
  return SharesOf(context, GroupRowsBytes(g, size.n_tokens) +
                               QueryCentersScratchBytes(
                                   n_pairs, g.n_q_heads / g.n_kv_heads));
}

Status RunQueryCenters(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t group = g.n_q_heads / g.n_kv_heads;
  const bool reduces = group > 1 && !args.per_query_head;
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        const uint64_t q_head = uint64_t{head} * group;
        const uint32_t n_tokens = job.tokens.Of(head);
        uint8_t* const scratch = ShareOf(context, args.scratch, worker).data();
        float* const group_rows = reinterpret_cast<float*>(scratch);
        float* const rows =
            job.rows + (args.per_query_head ? q_head : head) * job.tokens.most;
        Complex turns[kMaxRopeFrequencies];
        args.rope.TurnsAt(job.next_position, turns);

        QueryCenters centers;
        centers.keys = HeadRows(*job.view, job.view->k, head);
        centers.n_tokens = n_tokens;
        centers.n_sink = job.n_sink;
        centers.group = group;
        centers.n_pairs = args.rope.n_frequencies();
        centers.is_interleaved = args.rope.is_interleaved();
        centers.turns = turns;
        centers.centers =
            job.statistics.data + q_head * job.statistics.head_stride;
        centers.center_stride = job.statistics.head_stride;
        centers.out = reduces ? group_rows : rows;
        centers.out_stride = reduces ? n_tokens : job.tokens.most;
        centers.scratch = scratch + GroupRowsBytes(g, args.n_tokens).value();
        ScoreByCenters(context.simd(), centers);
        if (!reduces) return;
        ReduceRows(context.simd(), group_rows, group, n_tokens, n_tokens,
                   ToReduce(args.policy.group), rows);
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_query_centers = {RunQueryCenters, QueryCentersScratch};

}  // namespace kvevict::cpu
