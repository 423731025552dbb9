// Finds the pairs of a tile of keys and another tile whose cosines may decide
// something, by products of 16-bit elements, and computes these cosines alone.
//
// The filter rounds the elements of directions to f16 and multiplies them by
// tensor cores. With u and w the directions in f32, |u| |w| <= 1 + 2^-23 D, it
// differs from the sum of cosines.cuh by at most CosineError():
//
//   2^-10 + 2^-22   rounding: 2^-11 of each element, and of their product
//   2^-24 D         elements below 2^-14, which are off by 2^-25: the sum of
//                   the others is at most sqrt(D)
//   1.27 2^-24 D    sums of tensor cores: docs/cuda.md, "How exact scores are"
//   1.01 2^-24 D    sums of f32, one rounding for each element
//
// The constants below have room for the roundings of limits.
#ifndef KVEVICT_CUDA_KERNELS_NEAR_COSINES_CUH_
#define KVEVICT_CUDA_KERNELS_NEAR_COSINES_CUH_

#include "cache_rows.cuh"
#include "cosines.cuh"
#include "device.cuh"

namespace kvevict::cuda {

// Older GPUs compute all cosines.
enum : bool { kFiltersCosines = kArch >= 800 };

// Elements in shared memory at a time. The bytes of a row put ldmatrix's rows
// into different banks.
constexpr uint32_t kHalfElements = 128;
constexpr uint32_t kHalfPitch = 2 * kHalfElements + 16;
constexpr uint32_t kHalfBytes = kCosineTile * kHalfPitch;
static_assert(kHalfBytes == 2 * kTileFloats * sizeof(float),
              "cosines.cuh has the same memory");
constexpr uint32_t kMostPairs = kCosineThreads;

KV_DEVICE uint32_t PaddedHalves(uint32_t n) { return (n + 15) / 16 * 16; }

KV_DEVICE float CosineError(uint32_t head_dim) {
  return Fma(static_cast<float>(PaddedHalves(head_dim) + 1), 0x1p-22f,
             0x1p-10f);
}

// Stores the f16 elements of a direction.
template <uint32_t kN>
KV_DEVICE void StoreHalves(const float (&v)[kN], float scale, uint8_t* to) {
  const auto pair = [&](uint32_t i) {
    return FromFloat<kF16>(Multiply(v[i], scale)) |
           FromFloat<kF16>(Multiply(v[i + 1], scale)) << 16;
  };
  if constexpr (kN == 4) {
    reinterpret_cast<uint32_t*>(to)[0] = pair(0);
    reinterpret_cast<uint32_t*>(to)[1] = pair(2);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kN; i += 8) {
      *reinterpret_cast<Bytes16*>(to + i * 2) = {
          {pair(i), pair(i + 2), pair(i + 4), pair(i + 6)}};
    }
  }
}

// Loads elements [first, first + kHalfElements) of a direction, by a row's four
// threads. Elements up to a multiple of 16, and those of a missing direction,
// are 0.
KV_DEVICE void LoadHalves(const CacheRows& keys, uint32_t first,
                          const Direction& mine, uint8_t* to) {
  constexpr uint32_t kLanes = kCosineThreads / kCosineTile;
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t n = keys.head_dim - first < kHalfElements
                         ? keys.head_dim - first
                         : kHalfElements;
  const auto store = [&](uint32_t i, uint32_t bits) {
    *reinterpret_cast<uint16_t*>(to + i * 2) = static_cast<uint16_t>(bits);
  };
  const bool is_there = mine.scale != 0.0f;
  if (is_there) {
    WithDType(keys.dtype, [&](auto tag) {
      using Tag = decltype(tag);
      if (AreWide(tag, keys)) {
#pragma unroll(Tag::kIsPlain ? 4 : 1)
        for (uint32_t i = lane; i < n / Tag::kPer16; i += kLanes) {
          const Bytes16 words = LoadGlobal<Bytes16>(
              mine.row.address + uint64_t{first / Tag::kPer16 + i} * keys.wide);
          float v[Tag::kPer16];
          Unpack(tag, mine.row, words, v);
          StoreHalves(v, mine.scale, to + i * Tag::kPer16 * 2);
        }
      } else {
        for (uint32_t i = lane; i < n; i += kLanes) {
          const float v = LoadElement(tag, keys, mine.row,
                                      FindElement(tag, keys, first + i));
          store(i, FromFloat<kF16>(Multiply(v, mine.scale)));
        }
      }
    });
  }
  for (uint32_t i = (is_there ? n : 0) + lane; i < PaddedHalves(n);
       i += kLanes) {
    store(i, 0);
  }
}

// A warp's 16 rows by its 32 columns: [eight columns][2 * row + column]. Lane l
// has rows l / 4 and l / 4 + 8, and of eight columns numbers 2 (l % 4) and the
// next.
struct NearCosines {
  float x[4][4] = {};

  KV_DEVICE static uint32_t RowOf(uint32_t i) {
    return threadIdx.x / 64 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8;
  }
  KV_DEVICE static uint32_t ColumnOf(uint32_t m, uint32_t i) {
    return threadIdx.x / 32 % 2 * 32 + m * 8 + threadIdx.x % 4 * 2 + i % 2;
  }
  // Adds products of n elements, a multiple of 16.
  KV_DEVICE void Add(const uint8_t* rows, const uint8_t* columns, uint32_t n) {
    const uint32_t lane = threadIdx.x % 32;
    // Rows 0-7 and 8-15, elements 0-7 and 8-15 of each.
    const uint8_t* const row =
        rows + (threadIdx.x / 64 * 16 + lane % 16) * kHalfPitch +
        lane / 16 * 16;
    // Columns 0-7, elements 0-7 and 8-15, then columns 8-15.
    const uint8_t* const column =
        columns +
        (threadIdx.x / 32 % 2 * 32 + lane / 16 * 8 + lane % 8) * kHalfPitch +
        lane / 8 % 2 * 16;
#pragma unroll 4
    for (uint32_t k = 0; k < n / 16; ++k) {
      uint32_t a[4];
      LoadMatrix4(a, row + k * 32);
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        uint32_t b[4];
        LoadMatrix4(b, column + c * 16 * kHalfPitch + k * 32);
        const uint32_t first[2] = {b[0], b[1]};
        const uint32_t last[2] = {b[2], b[3]};
        MultiplyAccumulate16816<kF16>(x[2 * c], a, first);
        MultiplyAccumulate16816<kF16>(x[2 * c + 1], a, last);
      }
    }
  }
};

// Pairs of a block, in shared memory.
struct NearPairs {
  alignas(16) uint8_t row_halves[kHalfBytes];
  float column_scales[kCosineTile];  // of the last tile
  uint32_t n;                        // pairs, also those without room
  uint32_t rows[kMostPairs];         // within the block's tile
  uint32_t columns[kMostPairs];
  float cosines[kMostPairs];  // after Compute()

  // Multiplies a tile. find_row(i) and find_column(i) return directions i. Rows
  // may stay from call to call. column_halves has kHalfBytes, which may be read
  // until the call.
  template <class FindRow, class FindColumn>
  KV_DEVICE void MultiplyHalves(const CacheRows& keys, const FindRow& find_row,
                                const FindColumn& find_column, bool has_rows,
                                uint8_t* column_halves, NearCosines* products) {
    constexpr uint32_t kLanes = kCosineThreads / kCosineTile;
    const uint32_t key = threadIdx.x / kLanes;
    for (uint32_t i = 0; i < keys.head_dim; i += kHalfElements) {
      BlockSync();  // all have read what is overwritten
      const bool stays = has_rows && keys.head_dim <= kHalfElements;
#pragma unroll 1
      for (uint32_t side = stays ? 1 : 0; side < 2; ++side) {
        const Direction mine = side == 0 ? find_row(key) : find_column(key);
        LoadHalves(keys, i, mine,
                   (side == 0 ? row_halves : column_halves) + key * kHalfPitch);
        if (side == 1 && threadIdx.x % kLanes == 0) {
          column_scales[key] = mine.scale;
        }
      }
      BlockSync();
      const uint32_t n =
          keys.head_dim - i < kHalfElements ? keys.head_dim - i : kHalfElements;
      products->Add(row_halves, column_halves, PaddedHalves(n));
    }
  }

  // Adds the pairs for which is_near(row, column, cosine).
  template <class IsNear>
  KV_DEVICE void Add(const NearCosines& products, uint32_t tile,
                     const IsNear& is_near) {
    uint32_t mask = 0;
#pragma unroll
    for (uint32_t m = 0; m < 4; ++m) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        if (is_near(NearCosines::RowOf(i), NearCosines::ColumnOf(m, i),
                    products.x[m][i])) {
          mask |= 1u << (m * 4 + i);
        }
      }
    }
    if (mask == 0) return;
    const auto n_mine = static_cast<uint32_t>(PopCount(mask));
    uint32_t at = AtomicAddShared(&n, n_mine);
    for (; mask != 0 && at < kMostPairs; mask &= mask - 1, ++at) {
      const auto bit =
          31 - static_cast<uint32_t>(CountLeadingZeros(mask & (0 - mask)));
      rows[at] = NearCosines::RowOf(bit % 4);
      columns[at] = tile + NearCosines::ColumnOf(bit / 4, bit % 4);
    }
  }

  // Computes the cosines of the first n_pairs and forgets them. All have
  // passed a barrier since they were added.
  template <class FindRow, class FindColumn>
  KV_DEVICE void Compute(const CacheRows& keys, uint32_t n_pairs,
                         const FindRow& find_row,
                         const FindColumn& find_column) {
    if (threadIdx.x < n_pairs) {
      cosines[threadIdx.x] = CosineOf(keys, find_row(rows[threadIdx.x]),
                                      find_column(columns[threadIdx.x]));
    }
    BlockSync();
    if (threadIdx.x == 0) n = 0;
  }
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_NEAR_COSINES_CUH_
