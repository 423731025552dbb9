// A model's cache twice, on the host and on the GPU, with the same bytes.
#ifndef KVEVICT_TESTS_GPU_TWIN_H_
#define KVEVICT_TESTS_GPU_TWIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

inline constexpr kvevict_dtype kF32 = KVEVICT_DTYPE_F32;
inline constexpr kvevict_dtype kF16 = KVEVICT_DTYPE_F16;
inline constexpr kvevict_dtype kBf16 = KVEVICT_DTYPE_BF16;

// A wrapped ring is a pool of single rows with an index list.
enum class Layout { kTokenMajor, kHeadMajor, kPaged, kWrappedRing };

struct Shape {
  std::string name;
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t n_tokens;  // of the prompt; the cache holds a few more
  kvevict_dtype q_dtype;
  kvevict_dtype kv_dtype;
  Layout layout;
  float most_bias = 0.0f;  // biases of slots are up to this above and below 0
};

constexpr uint32_t kRoomForDecoding = 64;
constexpr uint32_t kBlockSize = 16;  // tokens per block of kPaged

Geometry GeometryOf(const Shape& shape);

// K, V and an opaque companion of 12 bytes per token and head, or biases of slots, per layer; query
// rows of all positions. Contents depend on shape and seed alone.
class Twin {
 public:
  Twin(const Gpu& gpu, const Shape& shape, uint64_t seed);

  const Shape& shape() const { return shape_; }
  uint32_t max_tokens() const { return shape_.n_tokens + kRoomForDecoding; }
  const std::vector<kvevict_view>& host_views() const { return host_views_; }
  const std::vector<kvevict_view>& device_views() const {
    return device_views_;
  }

  // Rows [first, ...) of a layer's queries, [n_q_heads, rows, head_dim].
  kvevict_plane HostQueries(uint32_t layer, uint32_t first) const;
  kvevict_plane DeviceQueries(uint32_t layer, uint32_t first) const;

  // Sets both caches back to their first contents.
  void Restore();
  // Writes the rows of a position to a slot of every layer, as decoding does.
  void Store(uint32_t position, uint32_t slot);
  // Copies the GPU's cache of a layer down.
  void Fetch(uint32_t layer);
  // "" or the difference between the first n_tokens slots of the fetched layer
  // and the host's.
  std::string CompareWithHost(uint32_t layer, uint32_t n_tokens) const;
  // "" or the slot of the fetched layer that does not hold its position's first
  // row.
  std::string CompareWithPositions(uint32_t layer, uint32_t kv_head,
                                   const std::vector<int32_t>& positions) const;
  // Whether the fetched layer's bytes are the first ones from a slot on; 0: all
  // of them.
  bool IsUntouched(uint32_t layer, uint32_t first_slot = 0) const;

  // Bytes of K, V and companion of all layers at n_tokens.
  uint64_t CacheBytes(uint64_t n_tokens) const;

 private:
  bool has_biases() const { return shape_.most_bias > 0.0f; }
  struct Layer {
    std::vector<uint8_t> original;
    std::vector<uint8_t> host;
    std::vector<uint8_t> fetched;
    std::vector<uint8_t> queries;
    std::unique_ptr<Buffer> device;
    std::unique_ptr<Buffer> device_queries;
    kvevict_plane host_companion;
    kvevict_plane device_companion;
  };

  void LayOut(uint32_t layer, uint64_t base, kvevict_view* view,
              kvevict_plane* companion) const;
  // Tokens per block; 0: contiguous.
  uint32_t BlockSize() const;
  // Offset in a layer's memory of a row of plane 0 (K), 1 (V) or 2.
  uint64_t Offset(uint32_t plane, uint32_t slot, uint32_t kv_head) const;
  uint32_t RowBytes(uint32_t plane) const;

  const Shape shape_;
  std::vector<Layer> layers_;
  std::vector<int32_t> block_table_;  // the same for all layers
  std::unique_ptr<Buffer> device_block_table_;
  std::vector<kvevict_view> host_views_;
  std::vector<kvevict_view> device_views_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_TWIN_H_
