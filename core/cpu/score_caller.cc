#include <cstring>

#include "core/cpu/cpu.h"
#include "core/policy/policy.h"
#include "core/signals/signals.h"

namespace kvevict::cpu {
namespace {

Status RunCaller(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t half_life = args.policy.half_life;
  ForEachHead(context, args, [&](const ScoreJob& job, uint32_t head, uint32_t) {
    const uint32_t list = job.slots.n_lists == 1 ? 0 : head;
    const uint32_t n_tokens = job.tokens.Of(head);
    float* row = job.rows + uint64_t{head} * job.tokens.most;
    std::memcpy(row, job.caller.data + head * job.caller.head_stride,
                n_tokens * sizeof(float));
    for (uint32_t slot = 0; half_life > 0 && slot < n_tokens; ++slot) {
      const auto position =
          static_cast<uint32_t>(job.slots.PositionOf(list, slot));
      row[slot] *= DecayFactor(job.n_seen - 1 - position, half_life);
    }
  });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_caller = {RunCaller};

}  // namespace kvevict::cpu
