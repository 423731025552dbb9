#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/signals/signals.h"

namespace kvevict::cpu {
namespace {

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t n_heads = args.layer.n_kv_heads;
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const ScoreJob& job = args.jobs[item / n_heads];
    const uint32_t head = item % n_heads;
    const uint32_t list = job.slots.n_lists == 1 ? 0 : head;
    float* row = job.rows + uint64_t{head} * job.tokens.most;
    const uint32_t n_tokens = job.tokens.Of(head);
    for (uint32_t slot = 0; slot < n_tokens; ++slot) {
      row[slot] =
          RandomScore(args.policy.seed, job.layer, head,
                      static_cast<uint32_t>(job.slots.PositionOf(list, slot)));
    }
  });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_random = {Run, NoScratch, nullptr};

}  // namespace kvevict::cpu
