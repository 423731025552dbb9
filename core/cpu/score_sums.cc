// Scores by attention sums. A work item is a layer and KV head. A row's sums
// are reduced and divided in pieces that stay in the L1 cache, so that they are
// read once. If queries are given instead, the sums are first computed from
// them.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/dtype.h"
#include "core/kernels/attention_sums.h"
#include "core/kernels/window_attention.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kColumns = 4096;

// The most room for exponentials in the best scratch. Exponentials that do not
// fit are computed twice, which is what causal attention costs anyway.
constexpr size_t kMostExpBytes = size_t{128} << 20;

// Bytes of a worker's computed sums, f32 [group, n_tokens].
CheckedSize MadeSumsBytes(const kvevict_layer_geometry& g, uint32_t n_tokens) {
  return (CheckedSize(GroupSize(g)) * CheckedSize(n_tokens) *
          CheckedSize(sizeof(float)))
      .AlignUp(kCacheLine);
}

ScratchNeeds SumsScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const bool readable =
      FindDType(g.k_dtype)->can_score && FindDType(g.q_dtype)->can_score;
  if (!readable) return CheckedSize(0);
  const WindowAttentionScratchSize attention =
      WindowAttentionScratchOfAnyWindow(size.n_tokens, GroupSize(g),
                                        g.k_head_dim);
  const auto of_all = [&](size_t attention_bytes) {
    // SIZE_MAX, which stands for a size that does not fit, overflows here.
    return SharesOf(context, MadeSumsBytes(g, size.n_tokens) +
                                 CheckedSize(attention_bytes));
  };
  return {of_all(attention.least),
          of_all(std::min(attention.best,
                          std::max(attention.least, kMostExpBytes)))};
}

// Computes the sums of a head's group over the given query rows: window
// attention with all of them as the window.
FloatRows MakeSums(const Context& context, const ScoreArgs& args,
                   const ScoreJob& job, uint32_t head,
                   std::span<uint8_t> scratch) {
  const kvevict_layer_geometry& g = args.layer;
  const uint64_t first_head = uint64_t{head} * GroupSize(g);
  const QueryRows& queries = job.queries;
  const size_t sums_bytes = MadeSumsBytes(g, job.tokens.most).value();
  float* const sums = reinterpret_cast<float*>(scratch.data());

  WindowAttention attention;
  attention.queries = queries.rows.Source();
  attention.queries.base +=
      static_cast<int64_t>(first_head) * queries.head_stride;
  attention.query_head_stride = queries.head_stride;
  if (queries.lse != nullptr) {
    attention.lse = reinterpret_cast<const float*>(
        reinterpret_cast<const uint8_t*>(queries.lse) +
        static_cast<int64_t>(first_head) * queries.lse_head_stride);
    attention.lse_row_stride = queries.lse_row_stride;
    attention.lse_head_stride = queries.lse_head_stride;
  }
  attention.keys = HeadRows(*job.view, job.view->k, head);
  attention.biases = HeadBiases(*job.view, head);
  attention.n_tokens = job.tokens.Of(head);
  attention.window = queries.n_rows;
  attention.group = GroupSize(g);
  attention.head_dim = g.k_head_dim;
  attention.scale = args.softmax_scale;
  attention.softcap = g.logit_softcap;
  if (job.sinks != nullptr) attention.sinks = job.sinks + first_head;
  attention.out = sums;
  attention.out_stride = job.tokens.most;
  attention.scratch = scratch.data() + sums_bytes;
  attention.scratch_bytes = scratch.size() - sums_bytes;
  ComputeWindowAttention(context.simd(), attention);
  return {sums, job.tokens.most};
}

// Computes one of the head's rows of scores. `sums` are those of all
// n_sum_heads of the layer, or begin at the head's first.
void ScoreRow(SimdTarget simd, const ScoreArgs& args, const ScoreJob& job,
              uint32_t head, const FloatRows& sums, uint32_t first,
              uint32_t n_terms, float* scores) {
  const Policy& policy = args.policy;
  const uint32_t list = job.slots.n_lists == 1 ? 0 : head;
  const uint32_t n_tokens = job.tokens.Of(head);
  const float* const terms = sums.data + first * sums.head_stride;
  // A sum that was reduced already is split equally among its query heads.
  const uint32_t n_rows = args.n_rows() / args.layer.n_kv_heads;
  const bool is_part =
      policy.group == KVEVICT_REDUCE_SUM && job.n_sum_heads < args.n_rows();
  const float part = is_part ? 1.0f / static_cast<float>(n_rows) : 1.0f;
  for (uint32_t begin = 0; begin < n_tokens; begin += kColumns) {
    const uint32_t n = std::min(kColumns, n_tokens - begin);
    ReduceRows(simd, terms + begin, n_terms, sums.head_stride, n,
               ToReduce(policy.group), scores + begin);
    if (part != 1.0f) {
      for (uint32_t i = begin; i < begin + n; ++i) scores[i] *= part;
    }
    if (policy.rows != KVEVICT_REDUCE_MEAN) continue;
    if (job.queries.n_rows > 0) {
      DivideByRows(simd, n_tokens, job.queries.n_rows, begin, n,
                   scores + begin);
    } else {
      DivideByQueries(simd, job.slots, list, begin, n, job.n_seen, job.n_summed,
                      scores + begin);
    }
  }
}

Status RunSums(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t n_kv_heads = args.layer.n_kv_heads;
  const uint32_t n_rows = args.n_rows() / n_kv_heads;  // rows of a KV head
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        const bool made = job.queries.n_rows > 0;
        const FloatRows sums =
            made ? MakeSums(context, args, job, head,
                            ShareOf(context, args.scratch, worker))
                 : job.sums;
        // Rows of sums of a KV head; 0: one row is for all heads.
        const uint32_t n_sums = job.n_sum_heads / n_kv_heads;
        for (uint32_t row = 0; row < n_rows; ++row) {
          const uint32_t first =
              (made ? 0 : head * n_sums) + (n_sums == n_rows ? row : 0);
          ScoreRow(
              context.simd(), args, job, head, sums, first,
              n_sums == n_rows ? 1 : std::max(1u, n_sums),
              job.rows + (uint64_t{head} * n_rows + row) * job.tokens.most);
        }
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_sums = {RunSums, SumsScratch};

}  // namespace kvevict::cpu
