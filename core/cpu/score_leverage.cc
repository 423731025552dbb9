// Scores keys by their leverage. A work item is a layer and KV head.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/leverage.h"
#include "core/view/rope.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

CheckedSize PositionBytes(uint32_t n_tokens) {
  return (CheckedSize(n_tokens) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

ScratchNeeds LeverageScratch(const Context& context, const LayerSize& size) {
  return SharesOf(context, PositionBytes(size.n_tokens) +
                               LeverageScratchBytes(size.geometry.k_head_dim));
}

Status RunLeverage(const Context& context, Stream, const ScoreArgs& args) {
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        const uint32_t n_tokens = job.tokens.Of(head);
        const uint32_t first = std::min(job.n_sink, n_tokens);
        const uint32_t end =
            n_tokens - std::min(job.n_recent, n_tokens - first);
        uint8_t* const scratch = ShareOf(context, args.scratch, worker).data();
        auto* const positions = reinterpret_cast<int32_t*>(scratch);
        for (uint32_t slot = first; slot < end; ++slot) {
          positions[slot - first] =
              args.policy.rotate ? static_cast<int32_t>(job.slots.first + slot)
                                 : job.slots.PositionOf(
                                       job.slots.n_lists == 1 ? 0 : head, slot);
        }
        float* const out = job.rows + uint64_t{head} * job.tokens.most;
        std::fill(out, out + first, 0.0f);
        std::fill(out + end, out + n_tokens, 0.0f);
        Leverage leverage;
        leverage.keys = HeadRows(*job.view, job.view->k, head);
        leverage.first_row = first;
        leverage.n_rows = end - first;
        leverage.head_dim = args.layer.k_head_dim;
        leverage.positions = positions;
        leverage.turns = args.rope.turns().data();
        leverage.n_pairs = args.rope.n_frequencies();
        leverage.is_interleaved = args.rope.is_interleaved();
        leverage.out = out + first;
        leverage.scratch = scratch + PositionBytes(args.n_tokens).value();
        ComputeLeverage(context.simd(), leverage);
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_leverage = {RunLeverage, LeverageScratch};

}  // namespace kvevict::cpu
