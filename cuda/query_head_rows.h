// Rows of query heads that stay in scratch until they are reduced to one per KV
// head.
#ifndef KVEVICT_CUDA_QUERY_HEAD_ROWS_H_
#define KVEVICT_CUDA_QUERY_HEAD_ROWS_H_

#include <algorithm>

#include "core/backend.h"
#include "core/policy/shaping.h"
#include "core/signals/signal.h"
#include "cuda/reduce_rows.h"

namespace kvevict::cuda {

inline uint32_t GroupSize(const kvevict_layer_geometry& g) {
  return g.n_q_heads / g.n_kv_heads;
}

// Bytes of f32 [n_q_heads, n_tokens] of a layer.
inline CheckedSize QueryHeadRowsBytes(const kvevict_layer_geometry& g,
                                      uint32_t n_tokens) {
  return (CheckedSize(g.n_q_heads) * CheckedSize(n_tokens) *
          CheckedSize(sizeof(float)))
      .AlignUp(256);
}

// The scratch of a signal that reduces the heads of a group. None if shaping
// needs them apart.
template <Signal kSignal>
ScratchNeeds QueryHeadRowsScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  constexpr uint32_t kMostInScratch = 16;  // layers
  const uint32_t group = GroupSize(g);
  if (group == 1 ||
      MakeShaping(size.policy, InfoOf(kSignal), group).n_terms > 1) {
    return CheckedSize(0);
  }
  const CheckedSize rows = QueryHeadRowsBytes(g, size.n_tokens);
  return {rows, CheckedSize(std::min(size.n_layers, kMostInScratch)) * rows};
}

// The distance in scratch from a layer's rows to the next layer's, or 0 if rows
// are written to their final place.
inline size_t QueryHeadRowsApart(const ScoreArgs& args) {
  if (GroupSize(args.layer) == 1 || args.per_query_head) return 0;
  return QueryHeadRowsBytes(args.layer, args.n_tokens).value();
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_QUERY_HEAD_ROWS_H_
