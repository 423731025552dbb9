// Scores of attention whose logits are capped, or whose softmax has sinks: kvevict's
// signals do not know of either, its attention does. The weights that it sums up over a
// window's queries are SnapKV's; the caller's scores (policy custom) take them on.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_OWN_SCORES_H_
#define KVEVICT_INTEGRATIONS_LLAMA_OWN_SCORES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "layers.h"

namespace kvevict::llama {

inline bool NeedsOwnScores(const LayerShape& shape) {
  return shape.softcap != 0 || shape.has_sinks != 0;
}

// The policy that keeps by WindowScores() what `policy` keeps by its own. Throws for one
// whose scores these are not.
kvevict_policy ByOwnScores(const kvevict_policy& policy);

// [n_kv_heads, n_tokens]: what `policy` makes of the attention of the last obs_window
// tokens, reduced over rows and query heads, and pooled. `queries` are
// [n_q_heads, obs_window, k_head_dim].
std::vector<float> WindowScores(
    const kvevict_context* context, const kvevict_policy& policy,
    const LayerShape& shape, std::span<const float> sinks,
    const kvevict_view& view, const kvevict_plane& queries, uint32_t n_tokens);

}  // namespace kvevict::llama

#endif  // KVEVICT_INTEGRATIONS_LLAMA_OWN_SCORES_H_
