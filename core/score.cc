#include "core/score.h"

#include <algorithm>

namespace kvevict {

Status ScoreAndShape(const Plan& plan, const SignalInfo& signal, Stream stream,
                     uint32_t n_tokens, Jobs<ScoreJob> scores,
                     Jobs<ShapeJob> shapes, std::span<uint8_t> scratch) {
  const Context& context = plan.context();
  const kvevict_geometry& g = plan.geometry();
  const Shaping shaping = plan.ShapingOf(signal);
  const ScoreOp& op = *(context.backend().*signal.op);
  const bool apart = shaping.n_terms > 1;
  while (!scores.empty()) {
    const size_t n =
        apart ? std::min<size_t>(scores.size(), kMostApart) : scores.size();
    KV_RETURN_IF_ERROR(op.run(context, stream,
                              {g, plan.policy(), plan.softmax_scale(), apart,
                               n_tokens, scores.first(n), scratch}));
    scores = scores.subspan(n);
    if (shapes.empty()) continue;
    if (!shaping.IsIdentity()) {
      KV_RETURN_IF_ERROR(context.backend().shape(
          context, stream, {shaping, g.n_kv_heads, shapes.first(n), scratch}));
    }
    shapes = shapes.subspan(n);
  }
  return Status();
}

}  // namespace kvevict
