// Rows of caches as kernels on both devices see them: random numbers in any layout.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_CACHE_PLANES_H_
#define KVEVICT_TESTS_CUDA_KERNELS_CACHE_PLANES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/kernels/row_source.h"
#include "cuda/kernels/params.h"
#include "tests/cuda/kernels/codes.h"
#include "tests/cuda/kernels/launch.h"

namespace kvevict {

// The layout of a tensor's rows in a layer of n_heads.
struct PlaneShape {
  uint32_t dtype;
  uint32_t head_dim;
  uint32_t n_heads;
  uint32_t block_size;   // 0: contiguous
  uint32_t n_most;       // the tokens that there is room for
  uint32_t table_heads;  // block tables: 1 or n_heads
  uint32_t gap;          // elements between rows
  bool transposed;       // elements apart
  uint32_t group =
      0;  // elements side by side, the groups of all rows apart; 0: all
  Numbers scales = {};  // of all layers
  Numbers minima = {};
  Recent recent = {};

  // Strides are multiples of this.
  int64_t element_bytes() const {
    if (dtype == cuda::kF32) return 4;
    return IsQuantized(dtype) && !HasBlocks(dtype) ? 1 : 2;
  }
  int64_t row_bytes() const {
    return oracle_packed_bytes(static_cast<kvevict_dtype>(dtype), head_dim);
  }
  uint32_t rows() const { return block_size == 0 ? n_most : block_size; }
  uint32_t n_blocks() const { return (n_most + rows() - 1) / rows(); }
  int64_t row_stride() const {
    return transposed  ? element_bytes()
           : group > 0 ? int64_t{group} * element_bytes()
                       : row_bytes() + gap * element_bytes();
  }
  int64_t element_stride() const {
    return transposed ? int64_t{rows()} * element_bytes() : element_bytes();
  }
  int64_t group_stride() const { return rows() * row_stride(); }
  // The offset of an element from its row's first.
  int64_t element(uint32_t e) const {
    return group == 0
               ? e * element_stride()
               : e / group * group_stride() + e % group * element_bytes();
  }
  int64_t head_stride() const {
    return (row_bytes() + gap * element_bytes()) * rows();
  }
  int64_t block_stride() const { return head_stride() * n_heads; }

  // The arguments of launches.
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
    r.scale = scales.InBlocksOf(rows());
    r.minimum = minima.InBlocksOf(rows());
    r.recent = recent.params();
    r.dtype = dtype;
    r.n_elements = r.head_dim = head_dim;
    const bool in_order =
        !HasBlocks(dtype) && InfoOfId(dtype).packing != Packing::kHalves;
    const bool shares = scales.of == Numbers::kGroup || r.recent.base != 0;
    const bool wide = in_order && !shares && !transposed &&
                      row_bytes() % 16 == 0 && row_stride() % 16 == 0 &&
                      head_stride() % 16 == 0;
    const bool groups_are_loads = group * element_bytes() == 16;
    if (wide && group == 0) r.wide = 16;
    if (wide && groups_are_loads) {
      r.wide = static_cast<uint32_t>(group_stride());
    }
    r.lanes = cuda::LanesOfRow(
        r.wide != 0 ? static_cast<uint32_t>(row_bytes() / 16) : head_dim);
    return r;
  }
};

// Rows of head_dim elements, or of whole blocks of a few more.
inline PlaneShape RandomPlane(uint32_t dtype, uint32_t head_dim,
                              uint32_t n_heads, uint32_t n_most,
                              Random& random) {
  const uint32_t block = BlockElements(dtype);
  head_dim = (head_dim + block - 1) / block * block;
  PlaneShape s = {dtype, head_dim, n_heads, 0, n_most, 1, 0, false};
  constexpr uint32_t kMostBlock = 40;
  bool has_groups = false;
#ifdef KV_TOKEN_GROUPS
  // Codes share scales by groups, or precede recent rows.
  has_groups = dtype >= cuda::kU8 && !HasBlocks(dtype) && random.Below(3) != 0;
  if (IsQuantized(dtype) && (!has_groups || random.Below(2) == 0)) {
    s.recent = DrawRecent(n_heads, head_dim, n_most, random);
  }
#endif
  const uint32_t dim = has_groups ? head_dim : 0;
  s.scales = DrawScales(dtype, n_heads, n_most + kMostBlock, random, dim);
  s.minima = DrawMinima(dtype, n_heads, n_most + kMostBlock, random, dim);
  if (random.Below(2) == 0) s.block_size = 1 + random.Below(kMostBlock);
  if (s.block_size > 0 && random.Below(2) == 0) s.table_heads = n_heads;
  if (random.Below(3) == 0) s.gap = random.Below(9);
  if (block > 1) return s;  // packed
  s.transposed = s.gap == 0 && random.Below(5) == 0;
  if (s.gap > 0 || s.transposed || random.Below(3) != 0) return s;
  // Groups have 16 bytes, or divide a row.
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

// The bytes of a plane's codes; without `rare` all are finite.
inline void DrawCodes(const PlaneShape& s, uint32_t rare, uint32_t n_numbers,
                      Random& random, std::vector<uint8_t>* memory) {
  const CodeNumbers& codes = InfoOfId(s.dtype).codes;
  for (uint8_t& byte : *memory) {
    byte = static_cast<uint8_t>(random.Below(n_numbers));
    // NaN and infinity become numbers below 2.
    if (IsFp8(s.dtype) && rare == 0 && (byte & 127u) > codes.largest)
      byte &= 0xBF;
  }
  if (!HasBlocks(s.dtype)) return;
  const size_t block = s.dtype == cuda::kQ4_0 ? 18 : 34;
  for (uint32_t b = 0; b < s.n_blocks(); ++b) {
    for (uint32_t h = 0; h < s.n_heads; ++h) {
      for (uint32_t r = 0; r < s.rows(); ++r) {
        uint8_t* const row = memory->data() + b * s.block_stride() +
                             h * s.head_stride() + r * s.row_stride();
        for (size_t at = 0; at < static_cast<size_t>(s.row_bytes());
             at += block) {
          const float scale = static_cast<float>(1 + random.Below(n_numbers));
          const uint32_t bits = EncodeElement(cuda::kF16, scale / 64.0f);
          std::memcpy(row + at, &bits, 2);
        }
      }
    }
  }
}

// Memory of a plane full of numbers. Every 1 / rare is NaN or an infinity, none if
// rare is 0. With n_numbers 1 or a few, many rows are alike.
inline std::vector<uint8_t> RandomRows(const PlaneShape& s, uint32_t rare,
                                       uint32_t n_numbers, Random& random) {
  const auto element = static_cast<size_t>(s.element_bytes());
  std::vector<uint8_t> memory(
      static_cast<size_t>(s.block_stride()) * s.n_blocks() + 16);
  if (IsQuantized(s.dtype)) {
    DrawCodes(s, rare, n_numbers, random, &memory);
    return memory;
  }
  for (size_t at = 0; at + element <= memory.size(); at += element) {
    float v =
        static_cast<float>(static_cast<int>(random.Below(n_numbers)) - 255) /
        8.0f;
    if (s.dtype != cuda::kF32) v = std::trunc(v * 4) / 4 / 2;
    if (rare > 0 && random.Below(rare) == 0) {
      constexpr float kSpecial[] = {kNan, kInfinity, -kInfinity};
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
  rows.n_elements = s.head_dim;
  const auto numbers = [&](const Numbers& of) {
    const cuda::RowNumbers in = of.InBlocksOf(s.rows());
    RowNumbers n;
    if (in.base == 0) return n;
    n.base = of.memory.data() + head * in.head_stride;
    n.row_stride = in.row_stride;
    n.block_stride = in.block_stride;
    n.dtype = static_cast<DType>(in.dtype);
    n.is_constant = in.is_constant != 0;
    n.group_rows = in.group_tokens;
    return n;
  };
  rows.scale = numbers(s.scales);
  rows.minimum = numbers(s.minima);
  const Recent& recent = s.recent;
  if (recent.first == UINT32_MAX) return rows;
  rows.recent = {recent.memory.data() + head * recent.head_stride(),
                 recent.row_stride(), recent.head_stride(), recent.first,
                 static_cast<DType>(recent.dtype)};
  if (rows.block_size != 0) rows.is_plain = false;
  return rows;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_CACHE_PLANES_H_
