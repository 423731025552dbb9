// Divides scores by drawn numbers. A work item is a layer and KV head.
#include <algorithm>
#include <limits>

#include "core/cpu/cpu.h"
#include "core/signals/signals.h"

namespace kvevict::cpu {
namespace {

Status RunDraw(const Context& context, Stream, const DrawArgs& args) {
  constexpr float kMost = std::numeric_limits<float>::max();
  ForEachHead(context, args, [&](const ShapeJob& job, uint32_t head, uint32_t) {
    const uint32_t n_tokens = job.scored->tokens.Of(head);
    if (n_tokens == 0) return;
    const SlotPositions& slots = job.scored->slots;
    const uint32_t list = slots.n_lists == 1 ? 0 : head;
    const auto position = [&](uint32_t slot) {
      return static_cast<uint32_t>(slots.PositionOf(list, slot));
    };
    // On a device work may be queued once and run again for later tokens.
    const uint32_t n_seen =
        slots.kept != nullptr ? position(n_tokens - 1) + 1 : job.scored->n_seen;
    const RandomRow random(args.seed, job.scored->layer, head);
    float* const scores = job.scores + uint64_t{head} * job.scored->tokens.most;
    for (uint32_t slot = 0; slot < n_tokens; ++slot) {
      float& score = scores[slot];
      if (!(score > 0.0f && score <= kMost)) continue;
      const float drawn =
          score / Exponential(random.Bits(n_seen, position(slot)));
      score = std::min(drawn, kMost);
    }
  });
  return Status();
}

}  // namespace

const Op<DrawArgs> kOp_draw = {RunDraw};

}  // namespace kvevict::cpu
