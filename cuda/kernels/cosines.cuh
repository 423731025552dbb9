// Cosines of a tile of keys with another tile of keys.
#ifndef KVEVICT_CUDA_KERNELS_COSINES_CUH_
#define KVEVICT_CUDA_KERNELS_COSINES_CUH_

#include "cache_rows.cuh"
#include "cosines.h"
#include "device.cuh"

namespace kvevict::cuda {

// A multiple of four, so that one load has a thread's keys.
constexpr uint32_t kKeyStride = kCosineTile + 4;  // keys are [element, token]
constexpr uint32_t kTileFloats = kCosineElements * kKeyStride;

// A key, and the factor that gives it norm 1; 0 if there is none.
struct Direction {
  CacheRow row;
  float scale;
};

// Loads elements [first, first + kCosineElements) of a tile's directions.
// find(i) returns direction i. Elements past the last one, and those of missing
// directions, are 0. Four threads share a row.
template <class Find>
KV_DEVICE void LoadDirections(const CacheRows& keys, uint32_t first,
                              const Find& find, float* to) {
  constexpr uint32_t kLanes = kCosineThreads / kCosineTile;
  const uint32_t key = threadIdx.x / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  const Direction mine = find(key);
  const uint32_t n = keys.head_dim - first < kCosineElements
                         ? keys.head_dim - first
                         : kCosineElements;
  const bool is_there = mine.scale != 0.0f;
  if (is_there) {
    const CacheRow at[1] = {mine.row};
    VisitRows(keys, {first, n, kLanes}, at, lane,
              [&](uint32_t, uint32_t i, float v) {
                to[i * kKeyStride + key] = v * mine.scale;
              });
  }
  for (uint32_t i = (is_there ? n : 0) + lane; i < kCosineElements;
       i += kLanes) {
    to[i * kKeyStride + key] = 0.0f;
  }
}

// Computes a thread's cosines: of rows threadIdx.x / 16 * 4 and the next three
// with columns threadIdx.x % 16 * 4 and the next three. Every product is summed
// in the order of its elements. Each tile has kTileFloats shared floats, which
// may be read until the call.
template <class FindRow, class FindColumn>
KV_DEVICE void MultiplyTiles(const CacheRows& keys, const FindRow& find_row,
                             const FindColumn& find_column, float* row_keys,
                             float* column_keys, float (&cosines)[4][4]) {
  const uint32_t my_row = threadIdx.x / 16 * 4;
  const uint32_t my_column = threadIdx.x % 16 * 4;
  for (uint32_t i = 0; i < keys.head_dim; i += kCosineElements) {
    BlockSync();  // all have read what is overwritten
    LoadDirections(keys, i, find_row, row_keys);
    LoadDirections(keys, i, find_column, column_keys);
    BlockSync();
    const uint32_t n = keys.head_dim - i < kCosineElements ? keys.head_dim - i
                                                           : kCosineElements;
#pragma unroll 8
    for (uint32_t e = 0; e < n; ++e) {
      const float* const rows = row_keys + e * kKeyStride + my_row;
      const float* const columns = column_keys + e * kKeyStride + my_column;
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) {
#pragma unroll
        for (uint32_t c = 0; c < 4; ++c) {
          cosines[r][c] = Fma(columns[c], rows[r], cosines[r][c]);
        }
      }
    }
  }
}

// Computes one of them, by one thread: the same products in the same order.
KV_DEVICE float CosineOf(const CacheRows& keys, const Direction& row,
                         const Direction& column) {
  float cosine = 0.0f;
  if (row.scale == 0.0f || column.scale == 0.0f) return cosine;
  const auto add = [&](float r, float c) {
    cosine = Fma(Multiply(c, column.scale), Multiply(r, row.scale), cosine);
  };
  WithDType(keys.dtype, [&](auto tag) {
    using Tag = decltype(tag);
    if (AreWide(tag, keys)) {
#pragma unroll(Tag::kIsPlain ? 2 : 1)
      for (uint32_t i = 0; i < keys.head_dim / Tag::kPer16; ++i) {
        const uint64_t offset = uint64_t{i} * keys.wide;
        float r[Tag::kPer16], c[Tag::kPer16];
        Unpack(tag, row.row, LoadGlobal<Bytes16>(row.row.address + offset), r);
        Unpack(tag, column.row,
               LoadGlobal<Bytes16>(column.row.address + offset), c);
#pragma unroll
        for (uint32_t j = 0; j < Tag::kPer16; ++j) add(r[j], c[j]);
      }
    } else {
      for (uint32_t i = 0; i < keys.head_dim; ++i) {
        const ElementPlace place = FindElement(tag, keys, i);
        add(LoadElement(tag, keys, row.row, place),
            LoadElement(tag, keys, column.row, place));
      }
    }
  });
  return cosine;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_COSINES_CUH_
