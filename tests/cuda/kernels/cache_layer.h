// Rows of a layer's cache in any layout, for kernels that read them.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_CACHE_LAYER_H_
#define KVEVICT_TESTS_CUDA_KERNELS_CACHE_LAYER_H_

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/cuda/kernels/counts.h"

namespace kvevict {

struct CacheCase {
  enum DType : uint32_t { kF32 = 1, kF16 = 2, kBF16 = 3 };
  uint32_t dtype;
  uint32_t head_dim;
  uint32_t n_heads;
  uint32_t block_size;  // 0: contiguous
  uint32_t gap;         // elements between rows
  bool transposed;      // elements apart
  bool has_tables;      // a block table per head
  uint32_t n_most;      // tokens there is room for

  uint32_t element_bytes() const { return dtype == kF32 ? 4 : 2; }
  uint32_t block() const { return block_size == 0 ? n_most : block_size; }
  uint32_t n_blocks() const { return (n_most + block() - 1) / block(); }
  int64_t element_stride() const {
    return int64_t{transposed ? block() : 1} * element_bytes();
  }
  int64_t row_stride() const {
    return int64_t{transposed ? 1 : head_dim + gap} * element_bytes();
  }
  // Rows of a head lie together within a block.
  int64_t head_stride() const {
    return int64_t{head_dim + gap} * block() * element_bytes();
  }

  // Layouts of all kinds; head_dim is the caller's.
  static CacheCase Draw(uint32_t dtype, uint32_t head_dim, uint32_t n_most,
                        Random& random) {
    CacheCase c = {};
    c.dtype = dtype;
    c.head_dim = head_dim;
    c.n_most = n_most;
    c.n_heads = 1 + random.Below(2);
    c.block_size = random.Below(2) == 0 ? 0 : 1 + random.Below(40);
    c.gap = random.Below(3) == 0 ? random.Below(9) : 0;
    c.transposed = c.gap == 0 && random.Below(5) == 0;
    c.has_tables = c.block_size > 0 && random.Below(2) == 0;
    return c;
  }

  // As a launch is told of them.
  cuda::CacheRows Params() const {
    cuda::CacheRows rows = {};
    const uint32_t row_bytes = head_dim * element_bytes();
    rows.layout = {row_stride(),     head_stride(),
                   element_stride(), head_stride() * n_heads,
                   block_size,       has_tables ? n_blocks() : 0};
    rows.dtype = dtype;
    rows.head_dim = head_dim;
    rows.wide = !transposed && row_bytes % 16 == 0 && row_stride() % 16 == 0 &&
                head_stride() % 16 == 0;
    rows.lanes = cuda::LanesOfRow(rows.wide != 0 ? row_bytes / 16 : head_dim);
    return rows;
  }
};

// The stored form of a number with three bits after the point, which all dtypes
// hold.
inline uint32_t Encode(uint32_t dtype, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (dtype == CacheCase::kF32) return bits;
  if (dtype == CacheCase::kBF16) return bits >> 16;
  if (v == 0.0f) return bits >> 16;
  return (bits >> 16 & 0x8000) | (((bits & 0x7fffffffu) >> 13) - (112u << 10));
}

// Rows [head, token, element], and where they lie.
struct CacheLayer {
  uint32_t n_tokens = 0;  // of any head, the most
  std::vector<float> rows;
  std::vector<uint8_t> memory;
  std::vector<int32_t> table;

  // Of layer l of the table; elements are eighths, at most 4 in size.
  CacheLayer(const CacheCase& c, const ListTable& tokens, size_t l,
             Random& random) {
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      n_tokens = std::max(n_tokens, tokens.Of(l, h));
    }
    const uint32_t n_blocks = c.n_blocks();
    const int64_t block_stride = c.head_stride() * c.n_heads;
    memory.assign(static_cast<size_t>(block_stride) * n_blocks + 16, 0xff);
    if (Address(memory.data()) % 16 != 0) Fail("memory is not aligned");
    for (uint32_t h = 0; h < (c.has_tables ? c.n_heads : 1); ++h) {
      std::vector<int32_t> blocks(n_blocks);
      std::iota(blocks.begin(), blocks.end(), 0);
      for (uint32_t i = n_blocks; i > 1; --i) {
        std::swap(blocks[i - 1], blocks[random.Below(i)]);
      }
      table.insert(table.end(), blocks.begin(), blocks.end());
    }
    rows.resize(size_t{c.n_heads} * n_tokens * c.head_dim);
    for (uint32_t h = 0; h < c.n_heads; ++h) {
      for (uint32_t t = 0; t < tokens.Of(l, h); ++t) {
        const uint32_t place =
            (c.has_tables ? h * n_blocks : 0) + t / c.block();
        const int64_t id = c.block_size == 0 ? 0 : table[place];
        int64_t at = id * block_stride + h * c.head_stride() +
                     t % c.block() * c.row_stride();
        for (uint32_t d = 0; d < c.head_dim; ++d, at += c.element_stride()) {
          const float v =
              static_cast<float>(static_cast<int>(random.Below(65)) - 32) /
              8.0f;
          rows[(size_t{h} * n_tokens + t) * c.head_dim + d] = v;
          const uint32_t bits = Encode(c.dtype, v);
          std::memcpy(memory.data() + at, &bits, c.element_bytes());
        }
      }
    }
  }
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_CACHE_LAYER_H_
