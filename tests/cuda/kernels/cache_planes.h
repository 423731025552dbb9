// Rows of caches as kernels of both devices see them: random numbers in any layout.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_CACHE_PLANES_H_
#define KVEVICT_TESTS_CUDA_KERNELS_CACHE_PLANES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "core/kernels/row_source.h"
#include "cuda/kernels/params.h"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {

// How the rows of a tensor lie in a layer of n_heads.
struct PlaneShape {
  uint32_t dtype;
  uint32_t head_dim;
  uint32_t n_heads;
  uint32_t block_size;   // 0: contiguous
  uint32_t n_most;       // tokens there is room for
  uint32_t table_heads;  // block tables: 1 or n_heads
  uint32_t gap;          // elements between rows
  bool transposed;       // elements apart
  uint32_t group =
      0;  // elements side by side, the groups of all rows apart; 0: all

  int64_t element_bytes() const { return dtype == cuda::kF32 ? 4 : 2; }
  uint32_t rows() const { return block_size == 0 ? n_most : block_size; }
  uint32_t n_blocks() const { return (n_most + rows() - 1) / rows(); }
  int64_t row_stride() const {
    return transposed  ? element_bytes()
           : group > 0 ? int64_t{group} * element_bytes()
                       : int64_t{head_dim + gap} * element_bytes();
  }
  int64_t element_stride() const {
    return transposed ? int64_t{rows()} * element_bytes() : element_bytes();
  }
  int64_t group_stride() const { return rows() * row_stride(); }
  // Where an element is, from its row's first.
  int64_t element(uint32_t e) const {
    return group == 0
               ? e * element_stride()
               : e / group * group_stride() + e % group * element_bytes();
  }
  int64_t head_stride() const {
    return int64_t{head_dim + gap} * rows() * element_bytes();
  }
  int64_t block_stride() const { return head_stride() * n_heads; }

  // What launches are told of it.
  cuda::CacheRows cache_rows() const {
    cuda::CacheRows r = {};
    r.layout.row_stride = row_stride();
    r.layout.head_stride = head_stride();
    r.layout.element_stride = element_stride();
    r.layout.block_stride = block_stride();
    r.layout.block_size = block_size;
    r.layout.table_head_stride = table_heads > 1 ? n_blocks() : 0;
    r.layout.group_elems = group;
    r.layout.group_stride = group > 0 ? group_stride() : 0;
    r.dtype = dtype;
    r.head_dim = head_dim;
    const auto row_bytes = static_cast<uint32_t>(head_dim * element_bytes());
    const bool wide = !transposed && row_bytes % 16 == 0 &&
                      row_stride() % 16 == 0 && head_stride() % 16 == 0;
    const bool groups_are_loads = group * element_bytes() == 16;
    if (wide && group == 0) r.wide = 16;
    if (wide && groups_are_loads) {
      r.wide = static_cast<uint32_t>(group_stride());
    }
    r.lanes = cuda::LanesOfRow(r.wide != 0 ? row_bytes / 16 : head_dim);
    return r;
  }
};

inline PlaneShape RandomPlane(uint32_t dtype, uint32_t head_dim,
                              uint32_t n_heads, uint32_t n_most,
                              Random& random) {
  PlaneShape s = {dtype, head_dim, n_heads, 0, n_most, 1, 0, false};
  if (random.Below(2) == 0) s.block_size = 1 + random.Below(40);
  if (s.block_size > 0 && random.Below(2) == 0) s.table_heads = n_heads;
  if (random.Below(3) == 0) s.gap = random.Below(9);
  s.transposed = s.gap == 0 && random.Below(5) == 0;
  if (s.gap > 0 || s.transposed || random.Below(3) != 0) return s;
  // Of 16 bytes, or what divides a row.
  s.group = static_cast<uint32_t>(16 / s.element_bytes());
  if (head_dim % s.group != 0) s.group = 1;
  return s;
}

// [table_heads, n_blocks], each a permutation.
inline std::vector<int32_t> RandomTables(const PlaneShape& s, Random& random) {
  std::vector<int32_t> tables;
  for (uint32_t h = 0; h < s.table_heads; ++h) {
    std::vector<int32_t> table(s.n_blocks());
    std::iota(table.begin(), table.end(), 0);
    for (uint32_t i = s.n_blocks(); i > 1; --i) {
      std::swap(table[i - 1], table[random.Below(i)]);
    }
    tables.insert(tables.end(), table.begin(), table.end());
  }
  return tables;
}

// The stored form of a number of 8 significant bits, which all dtypes hold.
inline uint32_t EncodeElement(uint32_t dtype, float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  if (dtype == cuda::kF32) return bits;
  if (dtype == cuda::kBF16) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (v == 0.0f) return sign;
  if (std::isnan(v)) return sign | 0x7e00;
  if (std::isinf(v)) return sign | 0x7c00;
  return sign | (((bits & 0x7fffffffu) >> 13) - (112u << 10));
}

// Memory of a plane full of numbers; every 1 / rare is NaN or an infinity, none if
// rare is 0. With n_numbers 1 or a few many rows are alike.
inline std::vector<uint8_t> RandomRows(const PlaneShape& s, uint32_t rare,
                                       uint32_t n_numbers, Random& random) {
  const auto element = static_cast<size_t>(s.element_bytes());
  std::vector<uint8_t> memory(
      static_cast<size_t>(s.block_stride()) * s.n_blocks() + 16);
  for (size_t at = 0; at + element <= memory.size(); at += element) {
    float v =
        static_cast<float>(static_cast<int>(random.Below(n_numbers)) - 255) /
        8.0f;
    if (s.dtype != cuda::kF32) v = std::trunc(v * 4) / 4 / 2;
    if (rare > 0 && random.Below(rare) == 0) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(),
                                    kInfinity, -kInfinity};
      v = kSpecial[random.Below(3)];
    }
    const uint32_t bits = EncodeElement(s.dtype, v);
    std::memcpy(memory.data() + at, &bits, element);
  }
  if (Address(memory.data()) % 16 != 0) Fail("memory is not aligned");
  return memory;
}

// A head's rows for the CPU's kernels.
inline RowSource HeadSource(const PlaneShape& s,
                            const std::vector<uint8_t>& memory,
                            const std::vector<int32_t>& tables, uint32_t head) {
  RowSource rows;
  rows.base = memory.data() + head * s.head_stride();
  rows.row_stride = s.row_stride();
  rows.element_stride = s.element_stride();
  rows.block_stride = s.block_stride();
  rows.block_size = s.block_size;
  rows.group_elems = s.group;
  rows.group_stride = s.group > 0 ? s.group_stride() : 0;
  rows.block_table =
      tables.data() + (s.table_heads > 1 ? size_t{head} * s.n_blocks() : 0);
  rows.dtype = static_cast<DType>(s.dtype);
  return rows;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_CACHE_PLANES_H_
