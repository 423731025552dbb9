// Attention of the window: an item is a layer and KV head.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/window_attention.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

uint32_t GroupSize(const kvevict_layer_geometry& g) {
  return g.n_q_heads / g.n_kv_heads;
}

// f32 [group, n_tokens]: the group's weights, before they are reduced.
CheckedSize GroupRowsBytes(const kvevict_layer_geometry& g, uint32_t n_tokens) {
  return (CheckedSize(GroupSize(g)) * CheckedSize(n_tokens) *
          CheckedSize(sizeof(float)))
      .AlignUp(kCacheLine);
}

// i32 [obs_window]: the stored row of window row w.
CheckedSize WindowTableBytes(const kvevict_policy& policy) {
  return (CheckedSize(policy.obs_window) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

ScratchNeeds ScratchBytes(const Context& context,
                          const kvevict_layer_geometry& g,
                          const kvevict_policy& policy, uint32_t,
                          uint32_t n_tokens) {
  const WindowAttentionScratchSize attention = WindowAttentionScratchBytes(
      n_tokens, std::min(policy.obs_window, n_tokens), GroupSize(g),
      g.k_head_dim);
  const auto of_all = [&](size_t attention_bytes) {
    // SIZE_MAX, which says that it does not fit, overflows here.
    return (GroupRowsBytes(g, n_tokens) + WindowTableBytes(policy) +
            CheckedSize(attention_bytes))
               .AlignUp(kCacheLine) *
           CheckedSize(context.n_workers());
  };
  return {of_all(attention.least), of_all(attention.best)};
}

// Rows that begin with `first` and wrap around: a paged cache with one row per
// block.
RowSource Wrapped(const RowSource& rows, uint32_t first, uint32_t n_rows,
                  int32_t* table) {
  if (first == 0) return rows;
  for (uint32_t w = 0; w < n_rows; ++w) {
    table[w] = static_cast<int32_t>((first + w) % n_rows);
  }
  RowSource wrapped = rows;
  wrapped.block_size = 1;
  wrapped.block_table = table;
  wrapped.block_stride = rows.row_stride;
  return wrapped;
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t window = args.policy.obs_window;
  const uint32_t group = GroupSize(g);
  const uint32_t n_items =
      static_cast<uint32_t>(args.jobs.size() * g.n_kv_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t worker) {
    const ScoreJob& job = args.jobs[item / g.n_kv_heads];
    const uint32_t head = item % g.n_kv_heads;
    const std::span<uint8_t> share = ShareOf(context, args.scratch, worker);
    uint8_t* scratch = share.data();
    float* group_rows = reinterpret_cast<float*>(scratch);
    scratch += GroupRowsBytes(g, args.n_tokens).value();
    int32_t* table = reinterpret_cast<int32_t*>(scratch);
    scratch += WindowTableBytes(args.policy).value();
    const uint64_t first_row =
        uint64_t{head} * (args.per_query_head ? group : 1);
    const uint32_t n_tokens = job.tokens.Of(head);
    float* const rows = job.rows + first_row * job.tokens.most;
    const bool reduces = group > 1 && !args.per_query_head;
    // Rows of a shorter head lie further apart than they are long.
    const bool apart = group > 1 && n_tokens < job.tokens.most;

    WindowAttention attention;
    attention.queries =
        Wrapped(job.queries.rows, job.queries.first_row, window, table);
    attention.queries.base += int64_t{head} * group * job.queries.head_stride;
    attention.query_head_stride = job.queries.head_stride;
    attention.keys = HeadRows(*job.view, job.view->k, head);
    attention.n_tokens = n_tokens;
    attention.window = window;
    attention.group = group;
    attention.head_dim = g.k_head_dim;
    attention.scale = args.softmax_scale;
    attention.out = reduces || apart ? group_rows : rows;
    attention.scratch = scratch;
    attention.scratch_bytes = share.data() + share.size() - scratch;
    ComputeWindowAttention(context.simd(), attention);

    if (args.policy.window_reduce == KVEVICT_REDUCE_MEAN) {
      const float scale = 1.0f / static_cast<float>(window);
      const uint64_t n = uint64_t{group} * n_tokens;
      for (uint64_t i = 0; i < n; ++i) attention.out[i] *= scale;
    }
    if (reduces) {
      ReduceRows(context.simd(), group_rows, group, n_tokens, n_tokens,
                 ToReduce(args.policy.group_reduce), rows);
    } else if (apart) {
      for (uint64_t i = 0; i < group; ++i) {
        std::copy_n(group_rows + i * n_tokens, n_tokens,
                    rows + i * job.tokens.most);
      }
    }
  });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_window = {Run, ScratchBytes, nullptr};

}  // namespace kvevict::cpu
