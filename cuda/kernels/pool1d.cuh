// Pools a row of scores, tile by tile, with the threads of a block. It does the
// operations of core/kernels/pool1d.cc in the same order, so the results have
// the same bits.
#ifndef KVEVICT_CUDA_KERNELS_POOL1D_CUH_
#define KVEVICT_CUDA_KERNELS_POOL1D_CUH_

#include "device.cuh"
#include "pool1d.h"
#include "quads.cuh"

namespace kvevict::cuda {

// The larger value, or NaN if either is NaN. If they are equal (+0 and -0), it
// is the second or the first.
KV_DEVICE float Larger(float a, float b, bool second_of_equals) {
  if (a != a) return a;
  return b > a || b != b || (second_of_equals && b == a) ? b : a;
}

struct Pooling {
  uint32_t n;
  uint32_t kernel;
  bool is_max;
  bool edge_shrinks;
  float scale;

  template <class Params>
  KV_DEVICE Pooling(const Params& p, uint32_t n)
      : n(n),
        kernel(p.kernel),
        is_max(p.is_max != 0),
        edge_shrinks(p.edge_shrinks != 0),
        scale(1.0f / static_cast<float>(p.kernel)) {}

  // Whether output i has a whole window within the row.
  KV_DEVICE bool IsInside(uint32_t i) const {
    return i >= kernel / 2 && i < n && n - i > kernel / 2;
  }

  // Computes kOutputs outputs with whole windows, kPoolThreads apart.
  template <uint32_t kOutputs>
  KV_DEVICE void Outputs(const uint32_t* window,
                         float (&result)[kOutputs]) const {
    for (uint32_t k = 0; k < kOutputs; ++k) {
      result[k] = ToFloat<kF32>(window[k * kPoolThreads]);
    }
    const uint32_t* const end = window + kernel;
    if (is_max) {
      while (++window != end) {
        for (uint32_t k = 0; k < kOutputs; ++k) {
          const float v = ToFloat<kF32>(window[k * kPoolThreads]);
          result[k] = Larger(result[k], v, true);
        }
      }
      return;
    }
    while (++window != end) {
      for (uint32_t k = 0; k < kOutputs; ++k) {
        result[k] += ToFloat<kF32>(window[k * kPoolThreads]);
      }
    }
    for (uint32_t k = 0; k < kOutputs; ++k) result[k] *= scale;
  }

  // Output i of the row; words of the window outside the row are not used.
  KV_DEVICE float Output(const uint32_t* window, uint32_t i) const {
    const uint32_t half = kernel / 2;
    const uint32_t begin = i < half ? half - i : 0;
    const uint32_t end = n - i > half ? kernel : half + (n - i);
    const bool inside = end - begin == kernel;
    float result = ToFloat<kF32>(window[begin]);
    if (is_max) {
      for (uint32_t j = begin + 1; j < end; ++j) {
        result = Larger(result, ToFloat<kF32>(window[j]), inside);
      }
      return result;
    }
    for (uint32_t j = begin + 1; j < end; ++j) {
      result += ToFloat<kF32>(window[j]);
    }
    if (inside || !edge_shrinks) return result * scale;
    return result * (1.0f / static_cast<float>(end - begin));
  }
};

// Shared words: the last ones of the tile before, then a tile. Outputs trail
// the tile by half a kernel, so output k of a tile is computed from `kernel`
// words, starting at word k of those `kernel - 1`, wherever the tile is in the
// row.
template <uint32_t kQuads, uint32_t kMostKernel>
struct PoolTile {
  static constexpr uint32_t kQuadsPerThread = kQuads;  // loaded at once
  static constexpr uint32_t kTile = 4 * kQuads * kPoolThreads;  // words
  static constexpr uint32_t kMargin =
      (kMostKernel - 2 + kPoolThreads) / kPoolThreads * kPoolThreads;
  static constexpr uint32_t kWords = kMargin + kTile;
  static_assert(kMostKernel - 1 <= kMargin && kMargin <= kTile);

  // What a thread writes to the shared words: its quads, and words of the tile
  // before.
  Bytes16 quads[kQuads] = {};
  uint32_t before[kMargin / kPoolThreads] = {};

  KV_DEVICE void Load(const Quads& in, uint32_t first_quad) {
#pragma unroll
    for (uint32_t k = 0; k < kQuads; ++k) {
      const uint32_t quad = first_quad + threadIdx.x + k * kPoolThreads;
      if (quad < in.Size()) quads[k] = in.Load(quad);
    }
  }
  KV_DEVICE void TakeMargin(const uint32_t* words) {
#pragma unroll
    for (uint32_t k = 0; k < kMargin / kPoolThreads; ++k) {
      before[k] = words[kTile + threadIdx.x + k * kPoolThreads];
    }
  }
  KV_DEVICE void Store(uint32_t* words) const {
#pragma unroll
    for (uint32_t k = 0; k < kMargin / kPoolThreads; ++k) {
      words[threadIdx.x + k * kPoolThreads] = before[k];
    }
#pragma unroll
    for (uint32_t k = 0; k < kQuads; ++k) {
      const uint32_t place = (threadIdx.x + k * kPoolThreads) * 4;
      *reinterpret_cast<Bytes16*>(&words[kMargin + place]) = quads[k];
    }
  }
};

// Puts outputs first, first + kPoolThreads ... that are in the row. Before the
// row `first` wraps around.
template <uint32_t kOutputs, class Put>
KV_DEVICE void PutOutputs(const Pooling& pooling, const uint32_t* window,
                          uint32_t first, const Put& put) {
  constexpr uint32_t kLast = (kOutputs - 1) * kPoolThreads;
  if (pooling.IsInside(first) && pooling.IsInside(first + kLast)) {
    float results[kOutputs];
    pooling.Outputs(window, results);
    for (uint32_t k = 0; k < kOutputs; ++k) {
      put(first + k * kPoolThreads, results[k]);
    }
    return;
  }
#pragma unroll 1
  for (uint32_t k = 0; k < kOutputs; ++k) {
    const uint32_t i = first + k * kPoolThreads;
    if (i >= pooling.n) continue;
    put(i, pooling.Output(window + k * kPoolThreads, i));
  }
}

// Calls put(i, output i) for the pooling.n words of a row. `words` are
// Tile::kWords shared words. Row words that outputs replace have been read,
// since outputs trail the tile; meanwhile the next tile is being loaded. At the
// end all words have been read.
template <class Tile, class Put>
KV_DEVICE void PoolRow(const Pooling& pooling, uint64_t row, uint32_t* words,
                       const Put& put) {
  const Quads in(row, pooling.n);
  const uint32_t behind = in.lead + pooling.kernel / 2;
  const uint32_t* const windows = words + Tile::kMargin - (pooling.kernel - 1);
  Tile mine;
  mine.Load(in, 0);
  for (uint32_t tile = 0; tile < pooling.n + behind; tile += Tile::kTile) {
    mine.Store(words);
    mine.Load(in, (tile + Tile::kTile) / 4);
    BlockSync();
    constexpr uint32_t kOutputs = 8;
#pragma unroll 1
    for (uint32_t k = threadIdx.x; k < Tile::kTile;
         k += kOutputs * kPoolThreads) {
      PutOutputs<kOutputs>(pooling, windows + k, tile + k - behind, put);
    }
    mine.TakeMargin(words);
    BlockSync();
  }
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_POOL1D_CUH_
