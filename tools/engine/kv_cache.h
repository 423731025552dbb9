// The cache of one sequence, as a small engine would hold it.
#ifndef KVEVICT_TOOLS_ENGINE_KV_CACHE_H_
#define KVEVICT_TOOLS_ENGINE_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/engine/library_context.h"

namespace kvevict::tools {

// How rows are stored.
struct KvLayout {
  uint32_t block_size = 0;  // tokens per block; 0: contiguous
  // Counts as in KIVI: the number of tokens that share the scales and minima of
  // keys, which are then per channel, and the least number of last tokens that
  // stay f32; 0: none. Only for a contiguous cache of a quantized dtype whose
  // heads are equally long.
  uint32_t group_tokens = 0;
  uint32_t recent_tokens = 0;
};

struct KvShape {
  uint32_t n_layers = 0;
  uint32_t n_kv_heads = 0;
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;
  // f32, f16, bf16, or u8 and u4 with a scale and a minimum per row.
  kvevict_dtype dtype = KVEVICT_DTYPE_F32;
  uint32_t capacity = 0;  // slots per layer
  KvLayout layout = {};
  // Each slot has a bias, 0 when it is appended; not of a quantized cache.
  bool has_biases = false;
};

// Keys and values: one token-major [capacity, n_kv_heads, head_dim] array each
// per layer, optionally in blocks, with their scales and minima beside them.
// Keys are stored after RoPE. Layers may hold different numbers of slots, and
// so may the heads of a layer.
class KvCache {
 public:
  explicit KvCache(const KvShape& shape);

  const KvShape& shape() const { return shape_; }

  // Slots in use by the longest head. Lowering it forgets the last ones, as
  // many of each head. What was quantized meanwhile stays quantized.
  uint32_t length(uint32_t layer) const;
  void set_length(uint32_t layer, uint32_t n_slots);
  // Slots that each head has in use. Appended rows go after a head's own. They
  // are set after an eviction, which leaves the last rows that are not
  // quantized.
  std::span<const uint32_t> lengths(uint32_t layer) const;
  void set_lengths(uint32_t layer, std::span<const uint32_t> of_heads);
  bool is_ragged(uint32_t layer) const;

  // Appends rows after those of each head, rounded or quantized as
  // kvevict_compact() does. k is [n_rows, n_kv_heads * k_head_dim], v [n_rows,
  // n_kv_heads * v_head_dim]. Rows are row_stride floats apart.
  void Append(uint32_t layer, uint32_t n_rows, const float* k,
              size_t k_row_stride, const float* v, size_t v_row_stride);

  // Copies the content of `other`, a cache of the same shape. It may lack biases,
  // which are then 0.
  void CopyFrom(const KvCache& other);

  // Bytes of the slots in use, or of their blocks, in all layers.
  uint64_t bytes_in_use() const;

  // How much smaller the content is than in f32, scales and minima included.
  // Free space in blocks does not count.
  double times_smaller_than_f32() const;

  // First element of a layer's keys and values.
  const void* k(uint32_t layer) const { return Data(layer, 0); }
  const void* v(uint32_t layer) const { return Data(layer, 1); }
  // One slot, all heads.
  size_t k_row_bytes() const { return SlotBytes(planes_[0]); }
  size_t v_row_bytes() const { return SlotBytes(planes_[1]); }

  // The layer as kvevict sees it; valid as long as the cache.
  kvevict_view View(uint32_t layer) const;

 private:
  struct FreeDeleter {
    void operator()(uint8_t* memory) const;
  };

  static size_t SlotBytes(const kvevict_plane& plane) {
    return static_cast<size_t>(plane.token_stride_bytes);
  }
  // Bytes of n slots of all heads. The last n_recent are recent.
  double BytesOf(uint32_t n_slots, uint32_t n_recent) const;
  uint32_t RecentOf(uint32_t layer) const {
    return n_planes_ <= 6 ? 0 : length(layer) - first_recent_[layer];
  }
  // Rows of a plane that a layer uses.
  uint32_t RowsOf(const kvevict_plane& plane, uint32_t n_slots,
                  uint32_t n_recent) const;
  void Store(uint32_t layer, const kvevict_view& rows, uint32_t n_rows,
             bool quantizes);
  void Quantize(uint32_t layer, uint32_t n_rows);
  // Makes the biases of some slots of a head 0.
  void ClearBiases(uint32_t layer, uint32_t head, uint32_t first, uint32_t n);
  const kvevict_plane* Planes(uint32_t layer) const {
    return &planes_[layer * n_planes_];
  }
  void* Data(uint32_t layer, uint32_t plane) const;

  KvShape shape_;
  uint32_t n_planes_;  // per layer: keys, values, scales and minima
  std::vector<kvevict_plane> planes_;  // [n_layers, n_planes_]
  std::vector<int32_t> block_table_;   // of every layer
  std::unique_ptr<uint8_t, FreeDeleter> memory_;
  LibraryContext context_;              // stores rows
  std::vector<uint32_t> lengths_;       // [n_layers, n_kv_heads]
  std::vector<uint32_t> first_recent_;  // [n_layers]
};

// Bytes of n elements.
size_t RowBytes(kvevict_dtype dtype, uint32_t n);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_KV_CACHE_H_
