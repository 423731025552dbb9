#include "core/cpu/cpu.h"
#include "core/signals/signals.h"

namespace kvevict::cpu {
namespace {

Status RunRandom(const Context& context, Stream, const ScoreArgs& args) {
  ForEachHead(context, args, [&](const ScoreJob& job, uint32_t head, uint32_t) {
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

const ScoreOp kOp_score_random = {RunRandom};

}  // namespace kvevict::cpu
