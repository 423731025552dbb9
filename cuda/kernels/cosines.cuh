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

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_COSINES_CUH_
