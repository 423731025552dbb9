// The cache of one sequence, as a small engine would hold it.
#ifndef KVEVICT_TOOLS_ENGINE_KV_CACHE_H_
#define KVEVICT_TOOLS_ENGINE_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvevict/kvevict.h"

namespace kvevict::tools {

struct KvShape {
  uint32_t n_layers = 0;
  uint32_t n_kv_heads = 0;
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;
  kvevict_dtype dtype = KVEVICT_DTYPE_F32;  // f32, f16 or bf16
  uint32_t capacity = 0;                    // slots per layer
};

// Keys and values, one token-major [capacity, n_kv_heads, head_dim] array each per
// layer. Keys are stored after RoPE. Layers may hold different numbers of slots, and so
// may the heads of a layer.
class KvCache {
 public:
  explicit KvCache(const KvShape& shape);

  const KvShape& shape() const { return shape_; }

  // Slots in use, the most of any head. Lowering it forgets the last ones, as many of
  // each head.
  uint32_t length(uint32_t layer) const;
  void set_length(uint32_t layer, uint32_t n_slots);
  // Slots that each head has in use. Rows that are appended go behind its own.
  std::span<const uint32_t> lengths(uint32_t layer) const;
  void set_lengths(uint32_t layer, std::span<const uint32_t> of_heads);
  bool is_ragged(uint32_t layer) const;

  // Appends rows behind those of each head, rounding to the nearest even.
  // k [n_rows, n_kv_heads * k_head_dim], v [n_rows, n_kv_heads * v_head_dim], rows
  // row_stride floats apart.
  void Append(uint32_t layer, uint32_t n_rows, const float* k,
              size_t k_row_stride, const float* v, size_t v_row_stride);

  // Copies what `other`, a cache of the same shape, holds.
  void CopyFrom(const KvCache& other);

  // Bytes of the slots in use, keys and values of all layers.
  uint64_t bytes_in_use() const;

  // First element of a layer's keys and values.
  const void* k(uint32_t layer) const { return K(layer); }
  const void* v(uint32_t layer) const { return V(layer); }
  size_t k_row_bytes() const { return k_row_bytes_; }  // one slot, all heads
  size_t v_row_bytes() const { return v_row_bytes_; }

  // The layer as kvevict sees it; valid as long as the cache.
  kvevict_view View(uint32_t layer) const;

 private:
  struct FreeDeleter {
    void operator()(uint8_t* memory) const;
  };

  uint8_t* K(uint32_t layer) const;
  uint8_t* V(uint32_t layer) const;

  KvShape shape_;
  size_t k_row_bytes_;
  size_t v_row_bytes_;
  size_t layer_bytes_;
  std::unique_ptr<uint8_t, FreeDeleter> memory_;
  std::vector<uint32_t> lengths_;  // [n_layers, n_kv_heads]
};

// 2 or 4.
uint32_t ElementBytes(kvevict_dtype dtype);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_KV_CACHE_H_
