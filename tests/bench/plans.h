// Arguments of calls: plans of layers that are alike, workspaces, token-major rows.
#ifndef KVEVICT_TESTS_BENCH_PLANS_H_
#define KVEVICT_TESTS_BENCH_PLANS_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>

#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"

namespace kvevict::bench {

inline PlanHandle CreatePlan(
    const kvevict_context* context, uint32_t n_layers,
    const kvevict_layer_geometry& layer, uint32_t max_tokens,
    const kvevict_policy* policy, std::span<const float> inv_freq = {},
    kvevict_rope_layout rope = KVEVICT_ROPE_LAYOUT_HALF) {
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = n_layers;
  geometry.max_tokens = max_tokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  geometry.rope_layout = rope;
  geometry.rope_inv_freq = inv_freq.data();
  geometry.rope_inv_freq_len = static_cast<uint32_t>(inv_freq.size());
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context, &geometry, policy, nullptr, &plan));
  return PlanHandle(plan);
}
inline PlanHandle CreatePlan(const kvevict_context* context, uint32_t n_layers,
                             const kvevict_layer_geometry& layer,
                             uint32_t max_tokens, const std::string& policy) {
  return CreatePlan(context, n_layers, layer, max_tokens,
                    CreatePolicy(policy).get());
}

inline kvevict_layer_geometry LayerOf(
    uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim,
    kvevict_dtype kv_dtype = KVEVICT_DTYPE_F32) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = n_q_heads;
  layer.n_kv_heads = n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = head_dim;
  layer.k_dtype = layer.v_dtype = kv_dtype;
  return layer;
}

inline SequenceHandle CreateSequence(const kvevict_plan* plan) {
  kvevict_sequence* sequence = nullptr;
  Check(kvevict_sequence_create(plan, &sequence));
  return SequenceHandle(sequence);
}

// The best workspace of an operation.
struct Workspace {
  explicit Workspace(size_t n) : bytes(n), memory(n + 1) {}
  Workspace(const kvevict_plan* plan, kvevict_operation operation)
      : Workspace(BestOf(plan, operation)) {}
  uint8_t* data() const { return memory.data(); }

  const size_t bytes;
  const HugeBuffer<uint8_t> memory;

 private:
  static size_t BestOf(const kvevict_plan* plan, kvevict_operation operation) {
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_plan_workspace(plan, operation, 0, &size));
    return size.best_bytes;
  }
};

// [tokens, n_heads, head_dim] of rows of so many bytes.
inline kvevict_plane PlaneOf(const void* data, kvevict_dtype dtype,
                             uint32_t n_heads, uint32_t head_dim,
                             size_t row_bytes) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = reinterpret_cast<uintptr_t>(data);
  plane.dtype = dtype;
  plane.head_dim = head_dim;
  plane.head_stride_bytes = static_cast<int64_t>(row_bytes);
  plane.token_stride_bytes = n_heads * plane.head_stride_bytes;
  return plane;
}
inline kvevict_plane RowsOf(const float* data, uint32_t n_heads,
                            uint32_t head_dim) {
  return PlaneOf(data, KVEVICT_DTYPE_F32, n_heads, head_dim,
                 head_dim * sizeof(float));
}
inline kvevict_plane RowsOf(const uint16_t* data, kvevict_dtype dtype,
                            uint32_t n_heads, uint32_t head_dim) {
  return PlaneOf(data, dtype, n_heads, head_dim, head_dim * sizeof(uint16_t));
}

inline uint16_t ToBf16(float value) {  // rounded towards zero
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

// Gaussian numbers around a mean, f32 or bf16.
template <class T>
void FillGaussian(HugeBuffer<T>& to, float mean = 0.0f, uint64_t seed = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> gaussian(mean);
  for (size_t i = 0; i < to.size(); ++i) {
    if constexpr (sizeof(T) == 2) {
      to[i] = ToBf16(gaussian(engine));
    } else {
      to[i] = gaussian(engine);
    }
  }
}

// Whatever dtype reads the bytes, no number is NaN or far from 1; `exponent` are the
// low bits of every second byte.
inline void FillWithCodes(HugeBuffer<uint8_t>& to, uint8_t exponent) {
  std::minstd_rand random(1);
  for (size_t i = 0; i < to.size(); ++i) {
    const auto bits = static_cast<uint8_t>(random() >> 8);
    to[i] = static_cast<uint8_t>(i % 2 == 0 ? bits & 0xC0
                                            : (bits & 0x80) | exponent);
  }
}

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_PLANS_H_
