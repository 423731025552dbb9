// Caches of keys in any layout, for the tests of kernels that read their rows.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_CACHE_ROWS_H_
#define KVEVICT_TESTS_CUDA_KERNELS_CACHE_ROWS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "cuda/kernels/params.h"
#include "tests/cuda/kernels/counts.h"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {

inline uint32_t BytesOf(uint32_t dtype) { return dtype == cuda::kF32 ? 4 : 2; }

// The stored form of a number with three bits after the point, which all dtypes hold,
// of NaN or of infinity.
inline uint32_t Encode(uint32_t dtype, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (dtype == cuda::kF32) return bits;
  if (dtype == cuda::kBF16) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (v == 0.0f) return sign;
  if (!std::isfinite(v)) return sign | 0x7c00 | (std::isnan(v) ? 0x200 : 0);
  return sign | (((bits & 0x7fffffffu) >> 13) - (112u << 10));
}

struct CacheCase {
  uint32_t dtype;
  uint32_t head_dim;
  uint32_t n_heads;
  uint32_t block_size;  // 0: contiguous
  uint32_t gap;         // elements between rows
  bool transposed;      // elements apart
  bool has_tables;      // a block table per head
  uint32_t n_most;      // tokens that there is room for

  int64_t RowStride() const {
    return transposed ? BytesOf(dtype)
                      : int64_t{head_dim + gap} * BytesOf(dtype);
  }
  uint32_t block() const { return block_size == 0 ? n_most : block_size; }
  uint32_t n_blocks() const { return (n_most + block() - 1) / block(); }
  // Rows of a head lie together, in blocks.
  int64_t HeadStride() const {
    return int64_t{head_dim + gap} * block() * BytesOf(dtype);
  }
  int64_t ElementStride() const {
    return int64_t{transposed ? block() : 1} * BytesOf(dtype);
  }

  cuda::CacheRows Rows() const {
    const uint32_t row_bytes = head_dim * BytesOf(dtype);
    cuda::CacheRows rows = {};
    rows.layout = {RowStride(),     HeadStride(),
                   ElementStride(), HeadStride() * n_heads,
                   block_size,      has_tables ? n_blocks() : 0};
    rows.dtype = dtype;
    rows.head_dim = head_dim;
    rows.wide = !transposed && row_bytes % 16 == 0 && RowStride() % 16 == 0 &&
                HeadStride() % 16 == 0;
    rows.lanes = cuda::LanesOfRow(rows.wide != 0 ? row_bytes / 16 : head_dim);
    return rows;
  }
};

inline CacheCase DrawCacheCase(uint32_t turn, uint32_t n_most, Random& random) {
  constexpr uint32_t kDims[] = {1, 3, 8, 16, 40, 41, 64, 80, 128, 300, 576};
  CacheCase c = {};
  c.dtype = 1 + turn % 3;
  c.head_dim = kDims[turn / 3 % std::size(kDims)];
  c.n_heads = 1 + random.Below(2);
  c.block_size = random.Below(2) == 0 ? 0 : 1 + random.Below(40);
  c.gap = random.Below(3) == 0 ? random.Below(9) : 0;
  c.transposed = c.gap == 0 && random.Below(5) == 0;
  c.has_tables = c.block_size > 0 && random.Below(2) == 0;
  c.n_most = n_most;
  return c;
}

// A layer: keys [head, token, element], and where they lie.
struct CacheLayer {
  uint32_t n_tokens;
  std::vector<float> keys;
  std::vector<uint8_t> memory;
  std::vector<int32_t> table;
  std::vector<float> scores;  // 77 where nothing is written

  const float* Key(const CacheCase& c, uint32_t head, uint32_t token) const {
    return keys.data() + (size_t{head} * n_tokens + token) * c.head_dim;
  }
};

// Every channel has a mean of its own. Some keys are `odd`, if there is one.
inline CacheLayer MakeCacheLayer(const CacheCase& c, const ListTable& tokens,
                                 size_t l, const std::vector<float>& odd,
                                 Random& random) {
  CacheLayer layer = {};
  for (uint32_t h = 0; h < c.n_heads; ++h) {
    layer.n_tokens = std::max(layer.n_tokens, tokens.Of(l, h));
  }
  const int64_t block_stride = c.HeadStride() * c.n_heads;
  layer.memory.assign(static_cast<size_t>(block_stride) * c.n_blocks() + 16,
                      0xff);
  if (Address(layer.memory.data()) % 16 != 0) Fail("memory is not aligned");
  for (uint32_t h = 0; h < (c.has_tables ? c.n_heads : 1); ++h) {
    std::vector<int32_t> table(c.n_blocks());
    std::iota(table.begin(), table.end(), 0);
    for (uint32_t i = c.n_blocks(); i > 1; --i) {
      std::swap(table[i - 1], table[random.Below(i)]);
    }
    layer.table.insert(layer.table.end(), table.begin(), table.end());
  }
  layer.keys.resize(size_t{c.n_heads} * layer.n_tokens * c.head_dim);
  layer.scores.assign(size_t{c.n_heads} * layer.n_tokens, 77.0f);
  std::vector<int> means(c.head_dim);
  for (int& mean : means) mean = static_cast<int>(random.Below(41)) - 20;
  for (uint32_t h = 0; h < c.n_heads; ++h) {
    for (uint32_t t = 0; t < tokens.Of(l, h); ++t) {
      const bool is_odd = !odd.empty() && random.Below(30) == 0;
      const uint32_t odd_place = random.Below(c.head_dim);
      const int32_t id =
          c.block_size == 0
              ? 0
              : layer.table[(c.has_tables ? h * c.n_blocks() : 0) +
                            t / c.block()];
      for (uint32_t d = 0; d < c.head_dim; ++d) {
        float v = static_cast<float>(means[d] +
                                     static_cast<int>(random.Below(65)) - 32) /
                  8.0f;
        if (is_odd && d == odd_place) {
          v = odd[random.Below(static_cast<uint32_t>(odd.size()))];
        }
        layer.keys[(size_t{h} * layer.n_tokens + t) * c.head_dim + d] = v;
        const int64_t at = id * block_stride + h * c.HeadStride() +
                           t % c.block() * c.RowStride() +
                           d * c.ElementStride();
        const uint32_t bits = Encode(c.dtype, v);
        std::memcpy(layer.memory.data() + at, &bits, BytesOf(c.dtype));
      }
    }
  }
  return layer;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_CACHE_ROWS_H_
