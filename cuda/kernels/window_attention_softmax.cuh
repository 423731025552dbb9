// The softmax of window_attention.cu on one lane's products, in base 2.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SOFTMAX_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SOFTMAX_CUH_

#include "device.cuh"
#include "tanh.cuh"
#include "window_attention_lse.cuh"
#include "window_attention_rows.cuh"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kTilesPerWarp = kShape.tiles_per_warp;
// A lane holds four keys' products with each of its rows.
constexpr uint32_t kLaneRows = 2 * kTilesPerWarp;

// Products of 16 keys with the query rows of a warp, in the layout of
// mma.m16n8k16.
struct Chunk {
  float x[kTilesPerWarp][2][4] = {};

  // The product of the lane's row i and its key j.
  KV_DEVICE float At(uint32_t i, uint32_t j) const {
    return x[i / 2][j / 2][2 * (i % 2) + j % 2];
  }
};

KV_DEVICE uint32_t Lane() { return threadIdx.x % 32; }
KV_DEVICE uint32_t RowWarp() { return threadIdx.x / 32 % kShape.row_warps; }
KV_DEVICE uint32_t KeyGroup() { return threadIdx.x / 32 / kShape.row_warps; }

// The index in the row block of this lane's row i.
KV_DEVICE uint32_t LaneRow(uint32_t i) {
  return RowWarp() * kTilesPerWarp * kTileRows + Lane() / 4 + 8 * i;
}
// The index in the tile of the first key of this warp's chunk c.
KV_DEVICE uint32_t ChunkKey(uint32_t c) {
  return (KeyGroup() * kChunksPerWarp + c) * 16;
}
// The index in the chunk of this lane's first key, and the distance from it to
// its key j.
KV_DEVICE uint32_t LaneKey() { return Lane() % 4 * 2; }
constexpr uint32_t kKeyStep[4] = {0, 1, 8, 9};

// Turns products of a chunk into logits in base 2, with the keys' biases.
KV_DEVICE void AddBiases(const Work& work, uint32_t first_key, Chunk& chunk) {
  for (uint32_t j = 0; j < 4; ++j) {
    const float bias = BiasOf(work, first_key + kKeyStep[j]);
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      float& x = chunk.x[i / 2][j / 2][2 * (i % 2) + j % 2];
      x = Fma(x, work.p.scale_log2e, bias);
    }
  }
}

// The products that LogitScale() turns into logits: those of a chunk, capped if
// there is a cap, and with biases. first_key is the first of this lane.
template <class Products>
KV_DEVICE decltype(auto) LogitsOf(const Work& work, const Products& products,
                                  uint32_t c, uint32_t first_key) {
  if constexpr (KV_SOFTCAP != 0 || KV_BIAS != 0) {
    Chunk chunk = products.Multiply(c);
    if constexpr (KV_SOFTCAP != 0) {
      for (uint32_t t = 0; t < kTilesPerWarp; ++t) {
        for (uint32_t i = 0; i < 8; ++i) {
          float& x = chunk.x[t][i / 4][i % 4];
          x = Tanh(x * work.p.scale_by_cap);
        }
      }
    }
    if constexpr (KV_BIAS != 0) AddBiases(work, first_key, chunk);
    return chunk;
  } else {
    return products.Multiply(c);
  }
}

// Calls weigh(logits, c) for each chunk c of this warp's keys of a tile,
// in order. If it
// overlaps, the next chunk is multiplied before a chunk is weighed, so that
// tensor cores and exponentials work at the same time.
template <bool kOverlaps, class Products, class Weigh>
KV_DEVICE void ForEachChunk(const Work& work, const Products& products,
                            uint32_t tile, const Weigh& weigh) {
  const auto logits = [&](uint32_t c) -> decltype(auto) {
    return LogitsOf(
        work, products, c,
        work.first_key + tile * kTileKeys + ChunkKey(c) + LaneKey());
  };
  if constexpr (kOverlaps && Products::kMayOverlap) {
    Chunk even = logits(0);
    // Two at a time, so that no products go from register to register.
#pragma unroll 1
    for (uint32_t c = 0; c + 2 < kChunksPerWarp; c += 2) {
      const Chunk odd = logits(c + 1);
      weigh(even, c);
      even = logits(c + 2);
      weigh(odd, c + 1);
    }
    const Chunk odd = logits(kChunksPerWarp - 1);
    weigh(even, kChunksPerWarp - 2);
    weigh(odd, kChunksPerWarp - 1);
  } else {
#pragma unroll Products::kUnrolledChunks
    for (uint32_t c = 0; c < kChunksPerWarp; ++c) {
      weigh(logits(c), c);
    }
  }
}

// The keys of a chunk that the lane's rows see; all of them if not kMasked.
template <bool kMasked>
struct Mask {
  int32_t n_visible[kLaneRows];  // from the lane's first key on

  // `visible_keys` is in shared memory, for each row of the block.
  KV_DEVICE Mask(const uint32_t* visible_keys, uint32_t first_key) {
    if constexpr (kMasked) {
      for (uint32_t i = 0; i < kLaneRows; ++i) {
        n_visible[i] = static_cast<int32_t>(visible_keys[LaneRow(i)] -
                                            first_key - LaneKey());
      }
    }
  }
  KV_DEVICE bool Sees(uint32_t i, uint32_t j) const {
    return !kMasked || static_cast<int32_t>(kKeyStep[j]) < n_visible[i];
  }
};

// 2^(logit - reference); 0 if not seen, whatever the product is.
template <bool kMasked>
KV_DEVICE float Weight(const Chunk& c, const Mask<kMasked>& mask, uint32_t i,
                       uint32_t j, float scale, float reference) {
  const float weight = Exp2(Fma(c.At(i, j), scale, -reference));
  return mask.Sees(i, j) ? weight : 0.0f;
}

// ---- First pass ----

template <bool kMasked>
KV_DEVICE float SumWeights(const Chunk& c, const Mask<kMasked>& mask,
                           uint32_t i, float scale, float reference) {
  return (Weight(c, mask, i, 0, scale, reference) +
          Weight(c, mask, i, 1, scale, reference)) +
         (Weight(c, mask, i, 2, scale, reference) +
          Weight(c, mask, i, 3, scale, reference));
}

// Makes the largest logit of the chunk the reference. A logit of +infinity
// makes the sum NaN.
template <bool kMasked>
KV_DEVICE void RaiseReference(const Chunk& c, const Mask<kMasked>& mask,
                              uint32_t i, float scale, RowSum& row) {
  float highest = kNoReference;
  for (uint32_t j = 0; j < 4; ++j) {
    const float logit = c.At(i, j) * scale;
    if (mask.Sees(i, j) && logit > highest) highest = logit;
  }
  row.sum *= Exp2(row.reference - highest);
  row.reference = highest;
}

template <bool kMasked>
KV_DEVICE void AddChunk(const Chunk& c, const Mask<kMasked>& mask, float scale,
                        RowSum (&rows)[kLaneRows]) {
  float sums[kLaneRows];
  bool high = false;
  for (uint32_t i = 0; i < kLaneRows; ++i) {
    sums[i] = SumWeights(c, mask, i, scale, rows[i].reference);
    high = high || sums[i] > kHighSum;
  }
  if (high) {
#pragma unroll
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      if (!(sums[i] > kHighSum)) continue;
      RaiseReference(c, mask, i, scale, rows[i]);
      sums[i] = SumWeights(c, mask, i, scale, rows[i].reference);
    }
  }
  for (uint32_t i = 0; i < kLaneRows; ++i) rows[i].sum += sums[i];
}

// Joins the sums of the four lanes that share rows.
KV_DEVICE RowSum JoinLanes(RowSum row) {
  for (uint32_t lanes = 1; lanes < 4; lanes *= 2) {
    row = Join(row,
               {ShuffleXor(row.reference, lanes), ShuffleXor(row.sum, lanes)});
  }
  return row;
}

// ---- Second pass ----

// Two of three steps that sum 16 keys over the rows of a warp, from v[j], the
// sum of this lane's key j over its rows. Each step halves the keys of a lane.
// With the last one, over lanes 4 apart, it takes 4 shuffles instead of 12. At
// the end a lane has the sum of the key ScatteredKey().
KV_DEVICE float HalveSums(const float (&v)[4]) {
  const bool high = (Lane() & 16) != 0;
  const bool odd = (Lane() & 8) != 0;
  float half[2];
  for (uint32_t b = 0; b < 2; ++b) {
    half[b] =
        Combine(high ? v[2 + b] : v[b], ShuffleXor(high ? v[b] : v[2 + b], 16));
  }
  return Combine(odd ? half[1] : half[0],
                 ShuffleXor(odd ? half[0] : half[1], 8));
}
KV_DEVICE uint32_t ScatteredKey() {
  return LaneKey() + (Lane() & 16) / 2 + (Lane() & 8) / 8;
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_SOFTMAX_CUH_
