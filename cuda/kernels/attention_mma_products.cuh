// Products of attention_mma.cu: a warp's 16 query rows by the keys of some slots
// of a tile, and their weights by its values.
//
// Lane l has rows l / 4 and l / 4 + 8, and of eight slots or elements numbers
// 2 (l % 4) and the next.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_MMA_PRODUCTS_CUH_
#define KVEVICT_CUDA_KERNELS_ATTENTION_MMA_PRODUCTS_CUH_

#include "attention_mma_rows.cuh"

namespace kvevict::cuda {
namespace {

// Slots of a tile that a warp has, 16 at a time.
constexpr uint32_t kChunks = kAttendSlots / 16 / kShape.key_groups;

struct Chunk {
  float x[2][4] = {};  // [slots 0-7 or 8-15][2 * row + slot]

  KV_DEVICE float& At(uint32_t row, uint32_t i) {
    return x[i / 2][2 * row + i % 2];
  }
};
// The slot of element i of a lane's row, behind the chunk's first.
KV_DEVICE uint32_t SlotOf(uint32_t i) {
  return i / 2 * 8 + Lane() % 4 * 2 + i % 2;
}

// The products of rows at `queries` and the keys from `keys` on. scales[i]
// belongs to row i of the lane.
KV_DEVICE void MultiplyKeys(const uint8_t* queries, const uint8_t* keys,
                            const float (&scales)[2],
                            Chunk (&products)[kChunks]) {
  Chunk low[kChunks];  // of the low parts of queries
  // ldmatrix returns rows 0-7 and 8-15, elements 0-7 and 8-15 of each.
  const uint8_t* const query =
      queries + Lane() % 16 * QueryTile::kPitch + Lane() / 16 * 16;
  // Slots 0-7, elements 0-7 and 8-15, then slots 8-15.
  const uint8_t* const key = keys +
                             (Lane() / 16 * 8 + Lane() % 8) * KeyTile::kPitch +
                             Lane() / 8 % 2 * 16;
#pragma unroll 2
  for (uint32_t k = 0; k < kKeyDim / 16; ++k) {
    uint32_t q[QueryTile::kParts][4];
#pragma unroll
    for (uint32_t part = 0; part < QueryTile::kParts; ++part) {
      LoadMatrix4(q[part], query + part * QueryTile::kPartBytes + k * 32);
    }
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
      for (uint32_t part = 0; part < KeyTile::kParts; ++part) {
        uint32_t v[4];
        LoadMatrix4(v, key + c * 16 * KeyTile::kPitch +
                           part * KeyTile::kPartBytes + k * 32);
        const uint32_t first[2] = {v[0], v[1]};
        const uint32_t last[2] = {v[2], v[3]};
#pragma unroll
        for (uint32_t p = 0; p < QueryTile::kParts; ++p) {
          auto& x = (p == 0 ? products : low)[c].x;
          MultiplyAccumulate16816<KeyTile::kElement>(x[0], q[p], first);
          MultiplyAccumulate16816<KeyTile::kElement>(x[1], q[p], last);
        }
      }
    }
  }
  if constexpr (QueryTile::kParts == 2) {
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        float& x = products[c].x[i / 4][i % 4];
        // With an infinite key the high parts alone tell which infinity it is.
        if (x - x == 0.0f) x += low[c].x[i / 4][i % 4];
        if (kScalesQueries) x *= scales[i % 4 / 2];
      }
    }
  }
}

// Sums of a warp's rows, weighted: [eight elements][2 * row + element].
using Sums = float[kValueDim / 8][4];

// Adds the values from `values` on with the weights of a chunk.
KV_DEVICE void AddValues(const uint8_t* values, const Chunk& weights,
                         Sums& sums) {
  uint32_t w[kWeightParts][4];
#pragma unroll
  for (uint32_t part = 0; part < kWeightParts; ++part) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float* const pair = &weights.x[i / 2][i % 2 * 2];
      w[part][i] = CutPartOf<ValueTile::kElement>(pair[0], part > 0);
      w[part][i] |= CutPartOf<ValueTile::kElement>(pair[1], part > 0) << 16;
    }
  }
  // Slots 0-7 and 8-15 of elements 0-7, then of 8-15.
  const uint8_t* const value =
      values + (Lane() / 8 % 2 * 8 + Lane() % 8) * ValueTile::kPitch +
      Lane() / 16 * 16;
#pragma unroll
  for (uint32_t j = 0; j < kValueDim / 16; ++j) {
#pragma unroll
    for (uint32_t part = 0; part < ValueTile::kParts; ++part) {
      uint32_t v[4];
      LoadTransposed4(v, value + part * ValueTile::kPartBytes + j * 32);
      const uint32_t first[2] = {v[0], v[1]};
      const uint32_t last[2] = {v[2], v[3]};
#pragma unroll
      for (uint32_t p = 0; p < kWeightParts; ++p) {
        MultiplyAccumulate16816<ValueTile::kElement>(sums[2 * j], w[p], first);
        MultiplyAccumulate16816<ValueTile::kElement>(sums[2 * j + 1], w[p],
                                                     last);
      }
    }
  }
}

// Whether any of a chunk's values is NaN or infinite. For whole warps.
KV_DEVICE bool HasOddValues(const uint8_t* values) {
  constexpr uint32_t kExponent = ValueTile::kElement == kF16 ? 0x7c00 : 0x7f80;
  bool is_odd = false;
  for (uint32_t i = Lane(); i < 16 * kValueDim / 8; i += 32) {
    const Bytes16 words = *reinterpret_cast<const Bytes16*>(
        values + i / (kValueDim / 8) * ValueTile::kPitch +
        i % (kValueDim / 8) * 16);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t low = words.x[j] & kExponent;
      const uint32_t high = words.x[j] >> 16 & kExponent;
      is_odd |= low == kExponent || high == kExponent;
    }
  }
  return Ballot(is_odd) != 0;
}

// Does the same for chunks with such values. Rows must not get the values of
// slots that they do not see; sees(row, slot) tells of the lane's rows.
template <class Sees>
KV_DEVICE void AddSeenValues(const uint8_t* values, Chunk& weights,
                             const Sees& sees, Sums& sums) {
#pragma unroll 1
  for (uint32_t slot = 0; slot < 16; ++slot) {
    float weight[2];
#pragma unroll
    for (uint32_t row = 0; row < 2; ++row) {
      float own[2];
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        own[i] = slot < 8 ? weights.At(row, i) : weights.At(row, 2 + i);
      }
      weight[row] = Shuffle(slot % 2 == 0 ? own[0] : own[1],
                            Lane() / 4 * 4 + slot % 8 / 2);
    }
    const bool is_seen[2] = {sees(0, slot), sees(1, slot)};
    const uint8_t* const value =
        values + slot * ValueTile::kPitch + Lane() % 4 * 4;
#pragma unroll
    for (uint32_t j = 0; j < kValueDim / 8; ++j) {
      float v[2] = {};
#pragma unroll
      for (uint32_t part = 0; part < ValueTile::kParts; ++part) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(
            value + part * ValueTile::kPartBytes + j * 16);
        v[0] += ToFloat<ValueTile::kElement>(pair & 0xffff);
        v[1] += ToFloat<ValueTile::kElement>(pair >> 16);
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        if (!is_seen[i / 2]) continue;
        sums[j][i] = Fma(weight[i / 2], v[i % 2], sums[j][i]);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_MMA_PRODUCTS_CUH_
