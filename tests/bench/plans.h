// Arguments of calls: plans of layers that are alike, and token-major rows.
#ifndef KVEVICT_TESTS_BENCH_PLANS_H_
#define KVEVICT_TESTS_BENCH_PLANS_H_

#include <cstdint>
#include <string>

#include "tests/bench/handles.h"

namespace kvevict::bench {

inline PlanHandle CreatePlan(const kvevict_context* context, uint32_t n_layers,
                             const kvevict_layer_geometry& layer,
                             uint32_t max_tokens, const std::string& policy) {
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = n_layers;
  geometry.max_tokens = max_tokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context, &geometry, CreatePolicy(policy).get(),
                            nullptr, &plan));
  return PlanHandle(plan);
}

inline kvevict_layer_geometry LayerOf(uint32_t n_q_heads, uint32_t n_kv_heads,
                                      uint32_t head_dim) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = n_q_heads;
  layer.n_kv_heads = n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = head_dim;
  return layer;
}

// f32 [tokens, n_heads, head_dim].
inline kvevict_plane RowsOf(const float* data, uint32_t n_heads,
                            uint32_t head_dim) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uintptr_t>(data);
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = head_dim;
  plane.head_stride_bytes = int64_t{head_dim} * sizeof(float);
  plane.token_stride_bytes = n_heads * plane.head_stride_bytes;
  return plane;
}

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_PLANS_H_
