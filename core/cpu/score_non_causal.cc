// Attention within chunks. A work item is a layer, KV head and chunk. A chunk
// is scored like a window of the chunk's length, whose rows see all of its
// keys.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/dtype.h"
#include "core/kernels/window_attention.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds NonCausalScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const uint32_t chunk = std::min(size.policy.block, size.n_tokens);
  const WindowAttentionScratchSize attention =
      WindowAttentionScratchOfAnyWindow(chunk, GroupSize(g), g.k_head_dim);
  return {SharesOf(context, CheckedSize(attention.least)),
          SharesOf(context, CheckedSize(attention.best))};
}

// Scores slots [first, first + n) of a head.
void ScoreChunk(const Context& context, const ScoreArgs& args,
                const ScoreJob& job, uint32_t head, uint32_t first, uint32_t n,
                std::span<uint8_t> scratch) {
  const uint32_t group = GroupSize(args.layer);
  const uint64_t first_row = uint64_t{head} * (args.per_query_head ? group : 1);

  WindowAttention attention;
  attention.queries = job.queries.rows.Source();
  attention.queries.base += int64_t{head} * group * job.queries.head_stride +
                            int64_t{first} * job.queries.rows.row_stride;
  attention.query_head_stride = job.queries.head_stride;
  attention.keys = HeadRows(*job.view, job.view->k, head);
  attention.biases = HeadBiases(*job.view, head);
  attention.first_key = first;
  attention.n_tokens = n;
  attention.window = n;
  attention.group = group;
  attention.head_dim = args.layer.k_head_dim;
  attention.scale = 1.0f;
  attention.rows.all_keys = true;
  attention.out = job.rows + first_row * job.tokens.most + first;
  attention.out_stride = job.tokens.most;
  if (!args.per_query_head) {
    attention.group_reduce = ToReduce(args.policy.group);
  }
  attention.scratch = scratch.data();
  attention.scratch_bytes = scratch.size();
  ComputeWindowAttention(context.simd(), attention);
}

// The slots of a head that take part.
struct Slots {
  uint32_t first;
  uint32_t end;
};

Slots SlotsOf(const ScoreArgs& args, const ScoreJob& job, uint32_t head) {
  const uint32_t n_tokens = job.tokens.Of(head);
  if (args.policy.ends == Ends::kIn) return {0, n_tokens};
  const uint32_t first = std::min(job.n_sink, n_tokens);
  return {first, n_tokens - std::min(job.n_recent, n_tokens - first)};
}

// The others score 0.
void ClearEnds(const ScoreArgs& args, const ScoreJob& job, uint32_t head,
               const Slots& slots) {
  const uint32_t n_rows = args.per_query_head ? GroupSize(args.layer) : 1;
  for (uint32_t r = 0; r < n_rows; ++r) {
    float* const row =
        job.rows + (uint64_t{head} * n_rows + r) * job.tokens.most;
    std::fill(row, row + slots.first, 0.0f);
    std::fill(row + slots.end, row + job.tokens.Of(head), 0.0f);
  }
}

Status RunNonCausal(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t chunk = args.policy.block;
  const uint32_t n_heads = args.layer.n_kv_heads;
  const uint32_t n_chunks = (args.n_tokens + chunk - 1) / chunk;
  const uint32_t n_of_job = n_chunks * n_heads;
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size() * n_of_job),
                      [&](uint32_t item, uint32_t worker) {
                        const ScoreJob& job = args.jobs[item / n_of_job];
                        const uint32_t head = item % n_heads;
                        const uint32_t index = item % n_of_job / n_heads;
                        const Slots all = SlotsOf(args, job, head);
                        if (index == 0) ClearEnds(args, job, head, all);
                        const uint32_t first = all.first + index * chunk;
                        if (first >= all.end) return;
                        ScoreChunk(context, args, job, head, first,
                                   std::min(chunk, all.end - first),
                                   ShareOf(context, args.scratch, worker));
                      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_non_causal = {RunNonCausal, NonCausalScratch};

}  // namespace kvevict::cpu
