// Scores by the attention of the window. A work item is a layer and KV head.
// A query row sees the slots up to its own token. A logit is the product of
// query and key times softmax_scale. The policy says how the softmax weights
// of the window's rows are reduced to one, and then those of the query heads
// of a KV head. All numbers are f32, except the sum of a row's exponentials,
// which is f64.
#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/pool_rows.h"
#include "core/kernels/window_attention.h"
#include "core/policy/policy.h"
#include "core/signals/signal_inputs.h"
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

// Bytes of the list of rows, if reference queries are among them.
CheckedSize ListBytes(const Policy& policy) {
  if (!HasReference(policy)) return CheckedSize(0);
  return (CheckedSize(ScoringRows(policy)) * CheckedSize(sizeof(ListedRow)))
      .AlignUp(kCacheLine);
}

// Bytes of the rows of one query head, f32 [rows + 2, n_tokens], if they are
// pooled one by one.
CheckedSize PooledBytes(const Policy& policy, uint32_t n_tokens) {
  if (!PoolsRows(policy)) return CheckedSize(0);
  return ((CheckedSize(ScoringRows(policy)) + CheckedSize(2)) *
          CheckedSize(n_tokens) * CheckedSize(sizeof(float)))
      .AlignUp(kCacheLine);
}

ScratchNeeds WindowScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const uint32_t logit_heads = OptionsOf(g, size.policy).logit_heads;
  // Rows that are pooled are those of one query head at a time.
  const uint32_t group =
      PoolsRows(size.policy) ? 1 : GroupSize(g) / logit_heads;
  const WindowAttentionScratchSize attention =
      WindowAttentionScratchBytes(size.n_tokens, ScoringRows(size.policy),
                                  group, g.k_head_dim, logit_heads);
  const auto of_all = [&](size_t attention_bytes) {
    // SIZE_MAX, which stands for a size that does not fit, overflows here.
    return MeasureBytes(g, size.policy, size.n_layers) +
           SharesOf(context, QueryTableBytes(size.policy.window.count) +
                                 ListBytes(size.policy) +
                                 PooledBytes(size.policy, size.n_tokens) +
                                 CheckedSize(attention_bytes));
  };
  return {of_all(attention.least), of_all(attention.best)};
}

// Lists the window's rows, if they score, and the reference queries of a KV head.
void ListRows(const Policy& policy, const ScoreJob& job, uint32_t head,
              ListedRow* out) {
  const uint32_t n = job.tokens.Of(head);
  const uint32_t window = policy.window.count;
  const uint32_t n_past = n - std::min(n, window);
  const uint32_t most = policy.softmax == SoftmaxKeys::kPast ? n_past : n;
  const auto add = [&](uint32_t n_before, uint32_t n_visible, double factor) {
    if (policy.row_weight == RowWeight::kPast) factor *= n_before;
    *out++ = {std::min(n_visible, most), static_cast<float>(factor)};
  };
  if (WindowScores(policy)) {
    const double factor = RowFactor(policy, false);
    for (uint32_t w = 0; w < window; ++w)
      add(n_past + w, n_past + w + 1, factor);
  }
  const double factor = RowFactor(policy, true);
  const SlotPositions slots = ReferenceSlots(policy, job);
  const uint32_t list = slots.n_lists == 1 ? 0 : head;
  for (uint32_t r = 0; r < policy.reference; ++r) {
    if (job.reference_positions == nullptr) {
      add(n, n, factor);
      continue;
    }
    const auto at = static_cast<uint32_t>(job.reference_positions[r]);
    add(slots.FirstFrom(list, at, n), slots.FirstFrom(list, at + 1, n), factor);
  }
}

// Adds the list to the attention of the window.
void AddReference(const ScoreArgs& args, const ScoreJob& job, uint32_t head,
                  ListedRow* list, WindowAttention* attention) {
  ListRows(args.policy, job, head, list);
  attention->list = list;
  attention->window = ScoringRows(args.policy);
  const QueryRows rows = QueryRowsOf(*job.reference, args.policy.reference);
  attention->n_own = attention->window - rows.n_rows;
  attention->reference = rows.rows.Source();
  attention->reference.base +=
      int64_t{head} * GroupSize(args.layer) * rows.head_stride;
  attention->reference_head_stride = rows.head_stride;
  attention->rows.past_only = false;
  attention->rows.weigh_by_past = false;
}

// The attention of a KV head's window, without what goes out. `table` is for the
// rows that wrap around, `list` for reference queries.
WindowAttention AttentionOf(const ScoreArgs& args, const ScoreJob& job,
                            uint32_t head, int32_t* table, ListedRow* list) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t group = GroupSize(g);
  WindowAttention attention;
  attention.rows = OptionsOf(g, args.policy);
  attention.queries = SourceOf(job.queries, table);
  attention.queries.base += int64_t{head} * group * job.queries.head_stride;
  attention.query_head_stride = job.queries.head_stride;
  attention.keys = HeadRows(*job.view, job.view->k, head);
  attention.biases = HeadBiases(*job.view, head);
  attention.n_tokens = job.tokens.Of(head);
  attention.window = args.policy.window.count;
  attention.group = group / attention.rows.logit_heads;
  attention.head_dim = g.k_head_dim;
  attention.scale = args.softmax_scale;
  attention.softcap = g.logit_softcap;
  if (job.sinks != nullptr) attention.sinks = job.sinks + head * group;
  if (HasReference(args.policy)) {
    AddReference(args, job, head, list, &attention);
  }
  return attention;
}

// Pools the rows of each query head of a KV head by themselves before rows and
// heads are reduced. `memory` is PooledBytes().
void ScorePooledRows(const Context& context, const ScoreArgs& args,
                     const ScoreJob& job, uint32_t head, float* memory,
                     WindowAttention attention) {
  const SimdTarget simd = context.simd();
  const Policy& policy = args.policy;
  const uint32_t group = GroupSize(args.layer);
  const size_t n =
      attention.n_tokens - (policy.keep_window ? policy.window.count : 0);
  // A mean over listed rows is the sum of what their factors make of them.
  const bool listed = attention.list != nullptr;
  const Reduce rows = listed && policy.rows == KVEVICT_REDUCE_MEAN
                          ? Reduce::kSum
                          : ToReduce(policy.rows);
  const size_t stride = attention.n_tokens;
  float* const out = job.rows + uint64_t{head} * job.tokens.most;
  float* const masses = job.masses == nullptr
                            ? nullptr
                            : job.masses + uint64_t{head} * job.tokens.most;
  float* const of_head = memory + attention.window * stride;
  attention.rows.apart = true;
  attention.rows.max_of_rows = false;
  attention.group = 1;
  attention.out = memory;
  attention.out_stride = stride;
  const bool is_max = policy.group == KVEVICT_REDUCE_MAX;
  const float part = 1.0f / static_cast<float>(group);
  const auto all_rows = static_cast<float>(SumOfFactors(policy));
  for (uint32_t g = 0; g < group; ++g) {
    ComputeWindowAttention(simd, attention);
    PoolAndReduceRows(simd, {memory, attention.window, stride, n, policy.pool,
                             policy.edge, rows, of_head + stride, of_head});
    AddRow(simd, of_head, n, policy.group == KVEVICT_REDUCE_MEAN ? part : 1.0f,
           g > 0, is_max, out);
    if (masses != nullptr) {
      ReduceRows(simd, memory, attention.window, stride, n,
                 listed ? Reduce::kSum : Reduce::kMean, of_head);
      AddRow(simd, of_head, n, listed ? part / all_rows : part, g > 0, false,
             masses);
    }
    attention.queries.base += attention.query_head_stride;
    attention.reference.base += attention.reference_head_stride;
    if (attention.sinks != nullptr) ++attention.sinks;
  }
}

Status RunWindow(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t window = args.policy.window.count;
  const size_t measure_bytes =
      MeasureBytes(g, args.policy, args.jobs.size()).value();
  const size_t table_bytes = QueryTableBytes(window).value();
  const size_t list_bytes = ListBytes(args.policy).value();
  const size_t pooled_bytes = PooledBytes(args.policy, args.n_tokens).value();
  auto* const measures = reinterpret_cast<WindowMeasure*>(args.scratch.data());
  context.ParallelFor(
      static_cast<uint32_t>(args.jobs.size() * g.n_kv_heads),
      [&](uint32_t item, uint32_t worker) {
        const ScoreJob& job = args.jobs[item / g.n_kv_heads];
        const uint32_t head = item % g.n_kv_heads;
        const std::span<uint8_t> share =
            ShareOf(context, args.scratch.subspan(measure_bytes), worker);
        const std::span<uint8_t> rest =
            share.subspan(table_bytes + list_bytes + pooled_bytes);
        WindowAttention attention = AttentionOf(
            args, job, head, reinterpret_cast<int32_t*>(share.data()),
            reinterpret_cast<ListedRow*>(share.data() + table_bytes));
        attention.scratch = rest.data();
        attention.scratch_bytes = rest.size();
        if (PoolsRows(args.policy)) {
          return ScorePooledRows(
              context, args, job, head,
              reinterpret_cast<float*>(share.data() + table_bytes + list_bytes),
              attention);
        }
        const uint64_t first_row =
            uint64_t{head} * (args.per_query_head ? GroupSize(g) : 1);
        attention.out = job.rows + first_row * job.tokens.most;
        attention.out_stride = job.tokens.most;
        if (args.policy.rows == KVEVICT_REDUCE_MEAN &&
            !HasReference(args.policy)) {
          attention.out_scale = 1.0f / static_cast<float>(window);
        }
        if (!args.per_query_head && attention.rows.logit_heads == 1) {
          attention.group_reduce = ToReduce(args.policy.group);
        }
        if (job.measure != nullptr) {
          attention.measure = measures + item;
          *attention.measure = {MeasureOf(args.policy) == Measure::kEnds,
                                args.policy.sink.count,
                                args.policy.recent.count + window};
        }
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

const ScoreOp kOp_score_window = {RunWindow, WindowScratch};

}  // namespace kvevict::cpu
