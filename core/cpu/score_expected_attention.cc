// Scores by the expected attention of future queries. A work item is a layer
// and KV head.
#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/expected_attention.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds ExpectedAttentionScratch(const Context& context,
                                      const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return SharesOf(context, GroupRowsBytes(g, size.n_tokens) +
                               ExpectedAttentionScratchBytes(
                                   g.k_head_dim, g.n_q_heads / g.n_kv_heads));
}

Status RunExpectedAttention(const Context& context, Stream,
                            const ScoreArgs& args) {
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

        ExpectedAttention attention;
        attention.keys = HeadRows(*job.view, job.view->k, head);
        attention.biases = HeadBiases(*job.view, head);
        attention.n_tokens = n_tokens;
        attention.n_sink = job.n_sink;
        attention.group = group;
        attention.head_dim = g.k_head_dim;
        attention.scale = args.softmax_scale;
        attention.mean =
            job.statistics.data + q_head * job.statistics.head_stride;
        attention.mean_stride = job.statistics.head_stride;
        if (job.query_covariance.data != nullptr) {
          attention.covariance = job.query_covariance.data +
                                 q_head * job.query_covariance.head_stride;
          attention.covariance_stride = job.query_covariance.head_stride;
        }
        attention.out = reduces ? group_rows : rows;
        attention.out_stride = reduces ? n_tokens : job.tokens.most;
        attention.scratch = scratch + GroupRowsBytes(g, args.n_tokens).value();
        ComputeExpectedAttention(context.simd(), attention);
        if (!reduces) return;
        ReduceRows(context.simd(), group_rows, group, n_tokens, n_tokens,
                   ToReduce(args.policy.group), rows);
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_expected_attention = {RunExpectedAttention,
                                              ExpectedAttentionScratch};

}  // namespace kvevict::cpu
