// Caches in device memory, of a model's size, for the rows of timings.
#ifndef KVEVICT_TESTS_GPU_ROWS_CACHE_H_
#define KVEVICT_TESTS_GPU_ROWS_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/gpu.h"

namespace kvevict::gpu::rows {

// How rows are stored. Numbers beside codes are f16.
struct Format {
  const char* name;
  kvevict_dtype dtype;
  bool has_scale;
  bool has_minimum;
  uint32_t key_group;  // tokens that share numbers for each element of keys
};
inline constexpr Format kF32 = {"f32", KVEVICT_DTYPE_F32, false, false, 0};
inline constexpr Format kF16 = {"f16", KVEVICT_DTYPE_F16, false, false, 0};
inline constexpr Format kBf16 = {"bf16", KVEVICT_DTYPE_BF16, false, false, 0};
inline constexpr Format kFp8 = {"fp8", KVEVICT_DTYPE_FP8_E4M3, false, false, 0};
inline constexpr Format kI8 = {"i8", KVEVICT_DTYPE_I8, true, false, 0};
inline constexpr Format kU8 = {"u8", KVEVICT_DTYPE_U8, true, true, 0};
inline constexpr Format kU4 = {"u4", KVEVICT_DTYPE_U4, true, true, 0};
inline constexpr Format kQ8 = {"q8_0", KVEVICT_DTYPE_Q8_0, false, false, 0};
inline constexpr Format kKivi = {"KIVI", KVEVICT_DTYPE_U4, true, true, 32};

struct Model {
  const char* name;
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
};

enum class Content { kRandom, kAroundMean };

struct CacheShape {
  Model model;
  uint32_t n_sequences = 1;
  uint32_t n_tokens = 0;
  Format format = kBf16;
  bool has_values = true;
  Content keys = Content::kRandom;
  uint32_t block_size = 0;  // 0: contiguous. Blocks lie in random order.
  bool head_major = false;

  // The bytes of K and V and their numbers, of all layers and sequences.
  uint64_t RowBytes() const;
};

class Cache {
 public:
  Cache(const Gpu& gpu, const CacheShape& shape, uint64_t seed);

  const CacheShape& shape() const { return shape_; }
  const kvevict_view& view(uint32_t layer, uint32_t sequence = 0) const {
    return views_[sequence * shape_.model.n_layers + layer];
  }
  // [n_layers] of a sequence.
  const kvevict_view* views(uint32_t sequence = 0) const {
    return &views_[sequence * shape_.model.n_layers];
  }

 private:
  kvevict_plane Rows(const Buffer& buffer, uint32_t i) const;
  kvevict_plane Numbers(kvevict_role role, uint32_t i);
  void AddCompanions(uint32_t i);
  void MakeTable(const Gpu& gpu, uint64_t seed);

  const CacheShape shape_;
  uint64_t plane_bytes_;  // of a layer of a sequence
  Buffer keys_;
  Buffer values_;
  std::vector<Buffer> numbers_;  // one for each role
  std::unique_ptr<Buffer> table_;
  std::vector<kvevict_view> views_;
  std::vector<std::vector<kvevict_plane>> companions_;
};

// [n_kv_heads, budget] ascending slots below n_tokens of each list, random.
Buffer RandomKeepLists(const Gpu& gpu, uint32_t n_lists, uint32_t n_tokens,
                       uint32_t budget, uint64_t seed);

// Queries of all layers: [layer, row, head, element], packed.
class Queries {
 public:
  Queries(const Gpu& gpu, const Model& model, uint32_t n_sequences,
          uint32_t n_rows, kvevict_dtype dtype, uint64_t seed);
  const kvevict_plane& of(uint32_t layer, uint32_t sequence = 0) const {
    return planes_[sequence * n_layers_ + layer];
  }

 private:
  uint32_t n_layers_;
  Buffer rows_;
  std::vector<kvevict_plane> planes_;
};

}  // namespace kvevict::gpu::rows

#endif  // KVEVICT_TESTS_GPU_ROWS_CACHE_H_
