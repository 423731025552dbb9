// Scores by the attention of the window. A work item is a layer and KV head.
#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/window_attention.h"
#include "core/policy/policy.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

WindowRowOptions OptionsOf(const kvevict_layer_geometry& g,
                           const Policy& policy) {
  WindowRowOptions rows;
  rows.past_only = policy.softmax == SoftmaxKeys::kPast;
  rows.weigh_by_past = policy.row_weight == RowWeight::kPast;
  rows.max_of_rows = policy.rows == KVEVICT_REDUCE_MAX;
  if (policy.order == ShapingOrder::kReduceLogits) {
    rows.logit_heads = GroupSize(g);
  }
  rows.spread = static_cast<float>(policy.spread);
  return rows;
}

// Bytes of a WindowMeasure for every job and head, if the policy needs them.
CheckedSize MeasureBytes(const kvevict_layer_geometry& g, const Policy& policy,
                         size_t n_layers) {
  if (!MeasuresLayers(policy)) return CheckedSize(0);
  return (CheckedSize(n_layers) * CheckedSize(g.n_kv_heads) *
          CheckedSize(sizeof(WindowMeasure)))
      .AlignUp(kCacheLine);
}

// Adds up a job's measures over its heads, in order.
void AddMeasures(const kvevict_layer_geometry& g, const Policy& policy,
                 const WindowMeasure* heads, float* out) {
  double first = 0.0;
  double variance = 0.0;
  for (uint32_t head = 0; head < g.n_kv_heads; ++head) {
    first += heads[head].first;
    variance += heads[head].variance;
  }
  if (MeasureOf(policy) == Measure::kEnds) {
    first /= double{1} * g.n_q_heads * policy.window.count;
  }
  out[0] = static_cast<float>(first);
  out[1] = static_cast<float>(variance);
}

// Bytes of i32 [window]: the stored row of window row w.
CheckedSize WindowTableBytes(const Policy& policy) {
  return (CheckedSize(policy.window.count) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

ScratchNeeds ScratchBytes(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const uint32_t logit_heads = OptionsOf(g, size.policy).logit_heads;
  const WindowAttentionScratchSize attention = WindowAttentionScratchBytes(
      size.n_tokens, size.policy.window.count, GroupSize(g) / logit_heads,
      g.k_head_dim, logit_heads);
  const auto of_all = [&](size_t attention_bytes) {
    // SIZE_MAX, which stands for a size that does not fit, overflows here.
    return MeasureBytes(g, size.policy, size.n_layers) +
           SharesOf(context, WindowTableBytes(size.policy) +
                                 CheckedSize(attention_bytes));
  };
  return {of_all(attention.least), of_all(attention.best)};
}

// The rows of a window. If they wrap around they are addressed like a paged
// cache with one row per block.
RowSource SourceOf(const QueryRows& queries, int32_t* table) {
  RowSource rows = queries.rows.Source();
  const uint32_t n_before_end = queries.ring_rows - queries.first_row;
  if (queries.n_rows <= n_before_end) {
    rows.base += int64_t{queries.first_row} * rows.row_stride;
    return rows;
  }
  for (uint32_t w = 0; w < queries.n_rows; ++w) {
    table[w] = static_cast<int32_t>(w < n_before_end ? queries.first_row + w
                                                     : w - n_before_end);
  }
  rows.block_size = 1;
  rows.block_table = table;
  rows.block_stride = rows.row_stride;
  return rows;
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t window = args.policy.window.count;
  const uint32_t group = GroupSize(g);
  const WindowRowOptions rows = OptionsOf(g, args.policy);
  const size_t measure_bytes =
      MeasureBytes(g, args.policy, args.jobs.size()).value();
  auto* const measures = reinterpret_cast<WindowMeasure*>(args.scratch.data());
  context.ParallelFor(
      static_cast<uint32_t>(args.jobs.size() * g.n_kv_heads),
      [&](uint32_t item, uint32_t worker) {
        const ScoreJob& job = args.jobs[item / g.n_kv_heads];
        const uint32_t head = item % g.n_kv_heads;
        const std::span<uint8_t> share =
            ShareOf(context, args.scratch.subspan(measure_bytes), worker);
        const size_t table_bytes = WindowTableBytes(args.policy).value();
        const uint64_t first_row =
            uint64_t{head} * (args.per_query_head ? group : 1);

        WindowAttention attention;
        attention.queries =
            SourceOf(job.queries, reinterpret_cast<int32_t*>(share.data()));
        attention.queries.base +=
            int64_t{head} * group * job.queries.head_stride;
        attention.query_head_stride = job.queries.head_stride;
        attention.keys = HeadRows(*job.view, job.view->k, head);
        attention.n_tokens = job.tokens.Of(head);
        attention.window = window;
        attention.group = group / rows.logit_heads;
        attention.head_dim = g.k_head_dim;
        attention.scale = args.softmax_scale;
        attention.softcap = g.logit_softcap;
        if (job.sinks != nullptr) attention.sinks = job.sinks + head * group;
        attention.rows = rows;
        attention.out = job.rows + first_row * job.tokens.most;
        attention.out_stride = job.tokens.most;
        if (args.policy.rows == KVEVICT_REDUCE_MEAN) {
          attention.out_scale = 1.0f / static_cast<float>(window);
        }
        if (!args.per_query_head && rows.logit_heads == 1) {
          attention.group_reduce = ToReduce(args.policy.group);
        }
        if (job.measure != nullptr) {
          attention.measure = measures + item;
          *attention.measure = {MeasureOf(args.policy) == Measure::kEnds,
                                args.policy.sink.count,
                                args.policy.recent.count + window};
        }
        attention.scratch = share.data() + table_bytes;
        attention.scratch_bytes = share.size() - table_bytes;
        ComputeWindowAttention(context.simd(), attention);
      });
  for (size_t i = 0; i < args.jobs.size(); ++i) {
    if (args.jobs[i].measure == nullptr) continue;
    AddMeasures(g, args.policy, measures + i * g.n_kv_heads,
                args.jobs[i].measure);
  }
  return Status();
}

}  // namespace

const ScoreOp kOp_score_window = {Run, ScratchBytes};

}  // namespace kvevict::cpu
