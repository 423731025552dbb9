// Pooling of scores along the tokens, in place, and reduction of several rows
// of scores to one. The same operations in the same order as
// core/kernels/pool1d.cc: the results have the same bits.
#include "pool1d.h"

#include "device.cuh"
#include "quads.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kInfinityBits = 0x7f800000u;

// The larger one, NaN if either is. Of equal ones, that is +0 and -0, the
// second or the first.
KV_DEVICE float Larger(float a, float b, bool second_of_equals) {
  if (a != a) return a;
  return b > a || b != b || (second_of_equals && b == a) ? b : a;
}

// Fills [begin, end) of a row with +infinity.
KV_DEVICE void FillInfinity(uint64_t row, uint32_t begin, uint32_t end,
                            uint32_t first, uint32_t step) {
  for (uint32_t i = begin + first; i < end; i += step) {
    StoreGlobal(row + uint64_t{i} * sizeof(float), kInfinityBits);
  }
}

// ---- pool_rows ----

constexpr uint32_t kQuadsPerThread = 4;  // on their way together
constexpr uint32_t kTile = 4 * kQuadsPerThread * kPoolThreads;  // words

// Shared words: the last ones of the tile before, then a tile. Outputs trail
// the tile by half a kernel, so that output k of a tile is made of `kernel`
// words from word k of those `kernel - 1` on, wherever the tile lies in the
// row.
constexpr uint32_t kMargin = 1024;
static_assert(kMaxPoolKernel - 1 <= kMargin);
static_assert(kMargin % kPoolThreads == 0 && kMargin <= kTile);

struct Pooling {
  uint32_t n;
  uint32_t kernel;
  bool is_max;
  bool edge_shrinks;
  float scale;

  KV_DEVICE Pooling(const PoolParams& p, uint32_t n)
      : n(n),
        kernel(p.kernel),
        is_max(p.is_max != 0),
        edge_shrinks(p.edge_shrinks != 0),
        scale(1.0f / static_cast<float>(p.kernel)) {}

  // Output i has a whole window, in the row's middle.
  KV_DEVICE bool IsInside(uint32_t i) const {
    return i >= kernel / 2 && i < n && n - i > kernel / 2;
  }

  // Outputs of whole windows kPoolThreads apart, side by side.
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

// What a thread brings to the shared words of a tile: its quads, and words of
// the tile before.
struct TileWords {
  Bytes16 quads[kQuadsPerThread] = {};
  uint32_t before[kMargin / kPoolThreads] = {};

  KV_DEVICE void Load(const Quads& in, uint32_t first_quad) {
#pragma unroll
    for (uint32_t k = 0; k < kQuadsPerThread; ++k) {
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
    for (uint32_t k = 0; k < kQuadsPerThread; ++k) {
      const uint32_t place = (threadIdx.x + k * kPoolThreads) * 4;
      *reinterpret_cast<Bytes16*>(&words[kMargin + place]) = quads[k];
    }
  }
};

// Stores outputs first, first + kPoolThreads ... as far as they are in the row;
// before the row `first` wraps around.
template <uint32_t kOutputs>
KV_DEVICE void StoreOutputs(const Pooling& pooling, const uint32_t* window,
                            uint64_t row, uint32_t first) {
  constexpr uint32_t kLast = (kOutputs - 1) * kPoolThreads;
  if (pooling.IsInside(first) && pooling.IsInside(first + kLast)) {
    float results[kOutputs];
    pooling.Outputs(window, results);
    for (uint32_t k = 0; k < kOutputs; ++k) {
      StoreGlobal(row + uint64_t{first + k * kPoolThreads} * sizeof(float),
                  results[k]);
    }
    return;
  }
#pragma unroll 1
  for (uint32_t k = 0; k < kOutputs; ++k) {
    const uint32_t i = first + k * kPoolThreads;
    if (i >= pooling.n) continue;
    StoreGlobal(row + uint64_t{i} * sizeof(float),
                pooling.Output(window + k * kPoolThreads, i));
  }
}

// What outputs replace has been read, as they trail the tile; the next tile is
// on its way from memory meanwhile.
KV_DEVICE void PoolInPlace(const PoolParams& p, uint64_t row, uint32_t n,
                           uint32_t* words) {
  const Quads in(row, n);
  const Pooling pooling(p, n);
  const uint32_t behind = in.lead + p.kernel / 2;
  const uint32_t* const windows = words + kMargin - (p.kernel - 1);
  TileWords mine;
  mine.Load(in, 0);
  for (uint32_t tile = 0; tile < n + behind; tile += kTile) {
    mine.Store(words);
    mine.Load(in, (tile + kTile) / 4);
    BlockSync();
    constexpr uint32_t kOutputs = 8;
#pragma unroll 1
    for (uint32_t k = threadIdx.x; k < kTile; k += kOutputs * kPoolThreads) {
      StoreOutputs<kOutputs>(pooling, windows + k, row, tile + k - behind);
    }
    mine.TakeMargin(words);
    BlockSync();
  }
}

}  // namespace

// Grid (n_rows, n_layers); a block walks one row upward. 20 KiB shared. Reads
// and writes every score once.
KV_KERNEL(pool_rows, PoolParams, kPoolThreads, 4) {
  KV_SHARED(uint32_t, words, kMargin + kTile);
  const PoolLayer& layer = p.layers[blockIdx.y];
  const uint64_t row =
      layer.rows + uint64_t{blockIdx.x} * layer.n_tokens * sizeof(float);
  if (p.kernel > 1) PoolInPlace(p, row, layer.n_pooled, words);
  FillInfinity(row, layer.n_pooled, layer.n_tokens, threadIdx.x, kPoolThreads);
}

// ---- reduce_rows ----

namespace {

KV_DEVICE float Combine(const ReduceParams& p, float a, float b) {
  return p.is_max != 0 ? Larger(a, b, true) : a + b;
}

KV_DEVICE float Finish(const ReduceParams& p, float sum) {
  return p.is_max != 0 ? sum : sum * p.scale;
}

// Four neighbouring columns, 16-byte aligned in every row.
KV_DEVICE void ReduceQuad(const ReduceParams& p, uint64_t in, uint64_t stride,
                          uint64_t out) {
  Bytes16 words = LoadGlobal<Bytes16>(in);
  float sum[4];
  for (uint32_t j = 0; j < 4; ++j) sum[j] = ToFloat<kF32>(words.x[j]);
#pragma unroll 4
  for (uint32_t r = 1; r < p.n_terms; ++r) {
    words = LoadGlobal<Bytes16>(in + r * stride);
    for (uint32_t j = 0; j < 4; ++j) {
      sum[j] = Combine(p, sum[j], ToFloat<kF32>(words.x[j]));
    }
  }
  for (uint32_t j = 0; j < 4; ++j) sum[j] = Finish(p, sum[j]);
  memcpy(&words, sum, sizeof(words));
  StoreGlobal(out, words);
}

KV_DEVICE void ReduceColumn(const ReduceParams& p, uint64_t in, uint64_t stride,
                            uint64_t out) {
  float sum = LoadGlobal<float>(in);
#pragma unroll 4
  for (uint32_t r = 1; r < p.n_terms; ++r) {
    sum = Combine(p, sum, LoadGlobal<float>(in + r * stride));
  }
  StoreGlobal(out, Finish(p, sum));
}

}  // namespace

// Grid (tokens / 1024 of the longest layer, n_out_rows, n_layers); a thread
// owns four columns and reads all their terms before it writes, so `out` may be
// the first row.
KV_KERNEL(reduce_rows, ReduceParams, kReduceThreads, 1) {
  const ReduceLayer& layer = p.layers[blockIdx.z];
  const uint64_t stride = uint64_t{layer.n_tokens} * sizeof(float);
  const uint64_t in = layer.in + uint64_t{blockIdx.y} * p.n_terms * stride;
  const uint64_t out = layer.out + uint64_t{blockIdx.y} * stride;
  const uint32_t block = blockIdx.x * kReduceThreads * kReduceColumns;
  if (block >= layer.n_tokens) return;

  const uint32_t i = block + threadIdx.x * kReduceColumns;
  const bool aligned = (layer.in | layer.out | stride) % 16 == 0;
  const uint32_t n_quads = aligned ? layer.n_reduced / 4 * 4 : 0;
  if (i < n_quads) {
    const uint64_t offset = uint64_t{i} * sizeof(float);
    ReduceQuad(p, in + offset, stride, out + offset);
  }
  for (uint32_t k = 0; k < kReduceColumns; ++k) {
    const uint32_t column = block + threadIdx.x + k * kReduceThreads;
    if (column < n_quads || column >= layer.n_reduced) continue;
    const uint64_t offset = uint64_t{column} * sizeof(float);
    ReduceColumn(p, in + offset, stride, out + offset);
  }
  const uint32_t end = layer.n_tokens - block < kReduceThreads * kReduceColumns
                           ? layer.n_tokens
                           : block + kReduceThreads * kReduceColumns;
  FillInfinity(out, block > layer.n_reduced ? block : layer.n_reduced, end,
               threadIdx.x, kReduceThreads);
}

}  // namespace kvevict::cuda
