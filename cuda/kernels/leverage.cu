// Leverage of keys before RoPE, with the bits of core/kernels/leverage.cc on
// targets with a fused multiply-add.
#include "leverage.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "slots.cuh"
#include "turn.cuh"

namespace kvevict::cuda {

namespace {

constexpr uint32_t kWarps = kLeverageThreads / 32;

// A KV head of a layer, its slots between both ends, and its matrices.
struct Head {
  const LeverageLayer& layer;
  uint32_t head;
  uint32_t n_tokens;
  uint32_t first;
  uint32_t end;
  uint64_t gram;    // [d, d]; then the inverse of the factor
  uint64_t factor;  // [d, d]
  uint64_t sums;    // [d]
  uint64_t means;   // [d]
};

KV_DEVICE Head FindHead(const LeverageParams& p, uint32_t head,
                        uint32_t index) {
  const LeverageLayer& layer = p.layers[index];
  const uint32_t n = CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t first = p.n_sink < n ? p.n_sink : n;
  const uint32_t end = p.n_recent < n - first ? n - p.n_recent : first;
  const uint32_t dim = p.keys.head_dim;
  const uint64_t matrix = uint64_t{dim} * dim * sizeof(double);
  const uint64_t gram = p.matrices + (uint64_t{index} * p.n_kv_heads + head) *
                                         LeverageDoubles(dim) * sizeof(double);
  return {layer,
          head,
          n,
          first,
          end,
          gram,
          gram + matrix,
          gram + 2 * matrix,
          gram + 2 * matrix + uint64_t{dim} * sizeof(double)};
}

KV_DEVICE double LoadDouble(uint64_t base, uint64_t i) {
  return LoadGlobal<double>(base + i * sizeof(double));
}
KV_DEVICE void StoreDouble(uint64_t base, uint64_t i, double v) {
  StoreGlobal(base + i * sizeof(double), v);
}

// Element e of a slot's key before RoPE.
KV_DEVICE float ElementBefore(const LeverageParams& p, const Head& at,
                              uint32_t slot, uint32_t e) {
  const CacheRow row =
      FindRow(p.keys, at.layer.keys, at.layer.block_table, at.head, slot);
  float v = 0.0f;
  WithDType(p.keys.dtype, [&](auto tag) {
    const auto load = [&](uint32_t i) {
      return LoadElement(tag, p.keys, row, FindElement(tag, p.keys, i));
    };
    if (e >= 2 * p.n_pairs) {
      v = load(e);
      return;
    }
    const bool interleaved = p.is_interleaved != 0;
    const uint32_t f = interleaved ? e / 2 : e < p.n_pairs ? e : e - p.n_pairs;
    const bool is_re = interleaved ? e % 2 == 0 : e < p.n_pairs;
    const float re = load(interleaved ? 2 * f : f);
    const float im = load(interleaved ? 2 * f + 1 : p.n_pairs + f);
    const int64_t position = PositionOf(at.layer.slots, p.kept,
                                        p.slot_lists == 1 ? 0 : at.head, slot);
    const uint64_t turn = static_cast<uint64_t>(-position) * p.turns[f];
    float cosine, sine;
    CosineAndSine(static_cast<uint32_t>(turn >> 32), &cosine, &sine);
    v = is_re ? Fma(re, cosine, -(im * sine)) : Fma(re, sine, im * cosine);
  });
  return v;
}

// Factors the Gram matrix with a ridge into R'R, R on and above the diagonal.
// False, for all threads, if it is not positive definite.
KV_DEVICE bool Factor(const Head& at, uint32_t dim, double ridge) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  for (uint32_t i = warp; i < dim; i += kWarps) {
    for (uint32_t j = i + lane; j < dim; j += 32) {
      const uint64_t place = uint64_t{i} * dim + j;
      const double v = LoadDouble(at.gram, place);
      StoreDouble(at.factor, place, i == j ? v + ridge : v);
    }
  }
  for (uint32_t k = 0; k < dim; ++k) {
    BlockSync();
    const uint64_t row = at.factor + uint64_t{k} * dim * sizeof(double);
    const double pivot = LoadDouble(row, k);
    if (!(pivot > 0.0 && pivot <= 1.7976931348623157e308)) return false;
    const double root = SquareRoot(pivot);
    BlockSync();  // all have read the pivot
    for (uint32_t j = k + threadIdx.x; j < dim; j += kLeverageThreads) {
      StoreDouble(row, j, LoadDouble(row, j) / root);
    }
    BlockSync();
    for (uint32_t i = k + 1 + warp; i < dim; i += kWarps) {
      const double factor = LoadDouble(row, i);
      for (uint32_t j = i + lane; j < dim; j += 32) {
        const uint64_t place = uint64_t{i} * dim + j;
        StoreDouble(
            at.factor, place,
            Fma(-factor, LoadDouble(row, j), LoadDouble(at.factor, place)));
      }
    }
  }
  BlockSync();
  return true;
}

// gram = the inverse of R', a lower triangle. A thread has a column.
KV_DEVICE void InvertFactor(const Head& at, uint32_t dim) {
  for (uint32_t j = threadIdx.x; j < dim; j += kLeverageThreads) {
    for (uint32_t i = 0; i < j; ++i) {
      StoreDouble(at.gram, uint64_t{i} * dim + j, 0.0);
    }
    for (uint32_t i = j; i < dim; ++i) {
      double v = i == j ? 1.0 : 0.0;
      for (uint32_t k = j; k < i; ++k) {
        v = Fma(-LoadDouble(at.factor, uint64_t{k} * dim + i),
                LoadDouble(at.gram, uint64_t{k} * dim + j), v);
      }
      StoreDouble(at.gram, uint64_t{i} * dim + j,
                  v / LoadDouble(at.factor, uint64_t{i} * dim + i));
    }
  }
}

}  // namespace

// Grid (LeverageTiles(), n_kv_heads, n_layers). A block has a tile of the Gram
// matrix of one head, a thread four of its elements, whose sums are in the order
// of the rows. 8.25 KiB shared. Reads the keys of two tiles of elements, and
// those that they are paired with.
KV_KERNEL(leverage_gram, LeverageParams, kLeverageThreads, 2) {
  constexpr uint32_t kPitch = kLeverageTile + 1;
  KV_SHARED(float, of_rows, kLeverageTile* kPitch);
  KV_SHARED(float, of_columns, kLeverageTile* kPitch);
  const Head at = FindHead(p, blockIdx.y, blockIdx.z);
  const uint32_t dim = p.keys.head_dim;
  uint32_t tile_i = 0;
  uint32_t tile_j = blockIdx.x;
  for (uint32_t n = (dim + kLeverageTile - 1) / kLeverageTile;
       tile_j >= n - tile_i; ++tile_i) {
    tile_j -= n - tile_i;
  }
  tile_j += tile_i;
  constexpr uint32_t kEach = kLeverageTile / kWarps;
  const uint32_t j = threadIdx.x % 32;
  const uint32_t i = threadIdx.x / 32 * kEach;
  double sums[kEach] = {};
  double sum = 0.0;
  for (uint32_t begin = at.first; begin < at.end; begin += kLeverageTile) {
    for (uint32_t k = threadIdx.x; k < kLeverageTile * kLeverageTile;
         k += kLeverageThreads) {
      const uint32_t e = k % kLeverageTile;
      const uint32_t r = k / kLeverageTile;
      const uint32_t slot = begin + r;
      const auto element = [&](uint32_t tile) {
        const uint32_t place = tile * kLeverageTile + e;
        if (slot >= at.end || place >= dim) return 0.0f;
        return ElementBefore(p, at, slot, place);
      };
      of_rows[r * kPitch + e] = element(tile_i);
      of_columns[r * kPitch + e] = element(tile_j);
    }
    BlockSync();
    for (uint32_t r = 0; r < kLeverageTile && begin + r < at.end; ++r) {
      const double x = of_columns[r * kPitch + j];
      sum += x;
#pragma unroll
      for (uint32_t a = 0; a < kEach; ++a) {
        sums[a] = Fma(double{of_rows[r * kPitch + i + a]}, x, sums[a]);
      }
    }
    BlockSync();
  }
  const uint32_t column = tile_j * kLeverageTile + j;
  if (column >= dim) return;
  if (tile_i == tile_j && i == 0) StoreDouble(at.sums, column, sum);
#pragma unroll
  for (uint32_t a = 0; a < kEach; ++a) {
    const uint32_t row = tile_i * kLeverageTile + i + a;
    if (row < dim) StoreDouble(at.gram, uint64_t{row} * dim + column, sums[a]);
  }
}

// Grid (n_kv_heads, n_layers). A block subtracts the mean from the Gram matrix
// of a head, factors it and inverts the factor; NaN if it cannot. The matrices
// stay in the cache of the GPU.
KV_KERNEL(leverage_factor, LeverageParams, kLeverageThreads, 1) {
  const Head at = FindHead(p, blockIdx.x, blockIdx.y);
  const uint32_t dim = p.keys.head_dim;
  if (at.first == at.end) return;
  const double n = static_cast<double>(at.end - at.first);
  for (uint32_t j = threadIdx.x; j < dim; j += kLeverageThreads) {
    StoreDouble(at.means, j, LoadDouble(at.sums, j) / n);
  }
  BlockSync();
  for (uint32_t i = threadIdx.x / 32; i < dim; i += kWarps) {
    const double sum = LoadDouble(at.sums, i);
    for (uint32_t j = i + threadIdx.x % 32; j < dim; j += 32) {
      const uint64_t place = uint64_t{i} * dim + j;
      StoreDouble(
          at.gram, place,
          Fma(-sum, LoadDouble(at.means, j), LoadDouble(at.gram, place)));
    }
  }
  BlockSync();
  double ridge = 0.01;
  bool found = Factor(at, dim, ridge);
  for (uint32_t i = 1; !found && i < 5; ++i) {
    ridge = i == 1 ? 0.1 : i == 2 ? 1.0 : i == 3 ? 10.0 : 100.0;
    BlockSync();  // all have read the pivot that failed
    found = Factor(at, dim, ridge);
  }
  if (found) {
    InvertFactor(at, dim);
    return;
  }
  for (uint32_t i = threadIdx.x; i < dim * dim; i += kLeverageThreads) {
    StoreDouble(at.gram, i, double{ToFloat<kF32>(kNaNBits)});
  }
}

// Grid (n_tokens / 32 of the longest layer, n_kv_heads, n_layers). A lane has a
// token, and a warp every 8th element of the tokens times the inverse, whose
// squares are added in order. 33 KiB shared. Reads the keys of its tokens and
// the inverse.
KV_KERNEL(leverage_scores, LeverageParams, kLeverageThreads, 2) {
  KV_SHARED(float, rows, kLeverageMostDim* kLeverageTile);
  KV_SHARED(float, products, kLeverageThreads);
  const Head at = FindHead(p, blockIdx.y, blockIdx.z);
  const uint32_t dim = p.keys.head_dim;
  const uint32_t begin = blockIdx.x * kLeverageTile;
  if (begin >= at.n_tokens) return;
  for (uint32_t k = threadIdx.x; k < dim * kLeverageTile;
       k += kLeverageThreads) {
    const uint32_t e = k % dim;
    const uint32_t slot = begin + k / dim;
    float v = 0.0f;
    if (slot >= at.first && slot < at.end) {
      v = static_cast<float>(ElementBefore(p, at, slot, e) -
                             LoadDouble(at.means, e));
    }
    rows[e * kLeverageTile + k / dim] = v;
  }
  BlockSync();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  const bool is_empty = at.first == at.end;
  double score = 0.0;
  for (uint32_t first = 0; first < dim && !is_empty; first += kWarps) {
    const uint32_t i = first + warp;
    double product = 0.0;
    for (uint32_t k = 0; i < dim && k <= i; ++k) {
      product = Fma(LoadDouble(at.gram, uint64_t{i} * dim + k),
                    double{rows[k * kLeverageTile + lane]}, product);
    }
    products[threadIdx.x] = static_cast<float>(product);
    BlockSync();
    for (uint32_t w = 0; w < kWarps && warp == 0; ++w) {
      const double y = products[w * 32 + lane];
      score = Fma(y, y, score);
    }
    BlockSync();
  }
  const uint32_t slot = begin + lane;
  if (warp != 0 || slot >= at.n_tokens) return;
  const bool takes_part = slot >= at.first && slot < at.end;
  StoreGlobal(
      at.layer.rows +
          (uint64_t{at.head} * at.layer.n_tokens + slot) * sizeof(float),
      takes_part ? static_cast<float>(score > 1.0 ? 1.0 : score) : 0.0f);
}

}  // namespace kvevict::cuda
