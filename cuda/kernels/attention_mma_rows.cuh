// Rows of attention_mma.cu in shared memory, as 16-bit elements.
//
// Rows of f16 and bf16 are copied asynchronously if they have loads of 16 bytes.
// All others are decoded by registers and stored in two parts, see parts.cuh.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_MMA_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_ATTENTION_MMA_ROWS_CUH_

#define KV_DTYPES (1u << KV_K_DTYPE | 1u << KV_V_DTYPE)
#include "attention.cuh"
#include "attention_mma.h"
#include "cache_rows.cuh"
#include "device.cuh"
#include "parts.cuh"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kKeyDim = AttendPadded(KV_HEAD_DIM);
constexpr uint32_t kValueDim = AttendPadded(KV_V_DIM);
constexpr AttendMmaShape kShape = ShapeAttendMma(
    KV_Q_DTYPE, KV_K_DTYPE, KV_V_DTYPE, kKeyDim, kValueDim, KV_ROW_WARPS);
constexpr uint32_t kBlockRows = kShape.row_warps * kAttendRows;

// How rows lie in shared memory: all rows of a part, then those of the next.
template <int kOfDType, int kOfElement, uint32_t kOfDim, uint32_t kRows>
struct TileOf {
  static constexpr int kDType = kOfDType;
  static constexpr int kElement = kOfElement;
  static constexpr uint32_t kParts = AttendParts(kDType, kElement);
  static constexpr uint32_t kDim = kOfDim;
  static constexpr uint32_t kPitch = AttendPitch(kDim);
  static constexpr uint32_t kPartBytes = kRows * kPitch;
};
using KeyTile =
    TileOf<KV_K_DTYPE, AttendElement(KV_K_DTYPE), kKeyDim, kAttendSlots>;
using ValueTile =
    TileOf<KV_V_DTYPE, AttendElement(KV_V_DTYPE), kValueDim, kAttendSlots>;
using QueryTile =
    TileOf<KV_Q_DTYPE, AttendElement(KV_K_DTYPE), kKeyDim, kBlockRows>;

// Queries that become two parts of f16 are scaled row by row.
constexpr bool kScalesQueries =
    QueryTile::kParts == 2 && QueryTile::kElement == kF16;

KV_DEVICE uint32_t Warp() { return threadIdx.x / 32; }
KV_DEVICE uint32_t Lane() { return threadIdx.x % 32; }

// What another lane has: a row or its address.
template <class T>
KV_DEVICE T ShuffleWords(const T& v, uint32_t lane) {
  constexpr uint32_t kWords = sizeof(T) / sizeof(uint32_t);
  uint32_t words[kWords];
  memcpy(words, &v, sizeof(T));
#pragma unroll
  for (uint32_t i = 0; i < kWords; ++i) words[i] = Shuffle(words[i], lane);
  T theirs;
  memcpy(&theirs, words, sizeof(T));
  return theirs;
}

// Stores eight elements from `to` on, in all parts.
template <class Tile>
KV_DEVICE void StoreEight(const float* v, uint8_t* to) {
#pragma unroll
  for (uint32_t part = 0; part < Tile::kParts; ++part) {
    Bytes16 words;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      words.x[j] = CutPartOf<Tile::kElement>(v[2 * j], part > 0) |
                   CutPartOf<Tile::kElement>(v[2 * j + 1], part > 0) << 16;
    }
    *reinterpret_cast<Bytes16*>(to + part * Tile::kPartBytes) = words;
  }
}

template <class Tile>
KV_DEVICE void StoreElement(uint32_t bits, uint32_t part, uint8_t* to) {
  *reinterpret_cast<uint16_t*>(to + part * Tile::kPartBytes) =
      static_cast<uint16_t>(bits);
}

constexpr uint32_t kWarpRows = kAttendSlots / kAttendMmaWarps;  // of a tile
static_assert(kWarpRows == 16);

// A warp's rows of a tile begin at `tile`, and lanes l and l + 16 have that of
// number l. Copies them, as one group.
template <class Tile>
KV_DEVICE void CopyTile(const CacheRows& rows, const CacheRow& mine,
                        uint8_t* tile) {
  constexpr uint32_t kPieces = Tile::kDim / 8;  // of 16 bytes, per row
#pragma unroll
  for (uint32_t n = 0; n < kWarpRows * kPieces / 32; ++n) {
    const uint32_t i = n * 32 + Lane();
    const uint32_t piece = i % kPieces;
    const uint64_t from = ShuffleWords(mine.address, i / kPieces);
    CopyAsync16(tile + i / kPieces * Tile::kPitch + piece * 16,
                from + uint64_t{piece} * rows.wide,
                from != 0 && piece * 8 < rows.head_dim);
  }
  CopyAsyncCommit();
}

// Decodes such rows by loads of 16 bytes. A lane has several in flight, and
// fewer if sums of long values take registers.
template <class Tile>
KV_DEVICE void DecodeWide(const CacheRows& rows, const CacheRow& mine,
                          uint8_t* tile) {
  using Tag = DTypeTag<Tile::kDType>;
  constexpr uint32_t kLoads =
      (Tile::kDim + Tag::kPer16 - 1) / Tag::kPer16;  // of a row
  constexpr uint32_t kRounds = (kWarpRows * kLoads + 31) / 32;
  constexpr uint32_t kMost = kValueDim > 128 ? 2 : 4;
  constexpr uint32_t kAtOnce = kRounds < kMost ? kRounds : kMost;
#pragma unroll 1
  for (uint32_t first = 0; first < kRounds * 32; first += kAtOnce * 32) {
    Bytes16 words[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t i = first + n * 32 + Lane();
      const CacheRow row = ShuffleWords(mine, i / kLoads % kWarpRows);
      const uint32_t load = i % kLoads;
      const bool is_there = row.address != 0 && i / kLoads < kWarpRows &&
                            load * Tag::kPer16 < rows.head_dim;
      words[n] = Bytes16{};
      if (is_there) {
        words[n] =
            LoadGlobal<Bytes16>(row.address + uint64_t{load} * rows.wide);
      }
    }
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t i = first + n * 32 + Lane();
      const CacheRow row = ShuffleWords(mine, i / kLoads % kWarpRows);
      if (i / kLoads >= kWarpRows) continue;
      const uint32_t e = i % kLoads * Tag::kPer16;
      const bool is_there = row.address != 0 && e < rows.head_dim;
      float v[Tag::kPer16];
      Unpack(Tag(), row, words[n], v);
#pragma unroll
      for (uint32_t j = 0; j < Tag::kPer16; j += 8) {
        if (!is_there) {
#pragma unroll
          for (uint32_t k = 0; k < 8; ++k) v[j + k] = 0.0f;
        }
        if (e + j < Tile::kDim) {
          StoreEight<Tile>(v + j,
                           tile + i / kLoads * Tile::kPitch + (e + j) * 2);
        }
      }
    }
  }
}

// The same for rows in any layout, an element by a lane.
template <class Tile>
KV_DEVICE void DecodeNarrow(const CacheRows& rows, const CacheRow& mine,
                            uint8_t* tile) {
  using Tag = DTypeTag<Tile::kDType>;
#pragma unroll 1
  for (uint32_t r = 0; r < kWarpRows; ++r) {
    const CacheRow row = ShuffleWords(mine, r);
#pragma unroll 4
    for (uint32_t e = Lane(); e < Tile::kDim; e += 32) {
      float v = 0.0f;
      if (row.address != 0 && e < rows.head_dim) {
        v = LoadElement(Tag(), rows, row, FindElement(Tag(), rows, e));
      }
#pragma unroll
      for (uint32_t part = 0; part < Tile::kParts; ++part) {
        StoreElement<Tile>(CutPartOf<Tile::kElement>(v, part > 0), part,
                           tile + r * Tile::kPitch + e * 2);
      }
    }
  }
}

// Starts filling a tile with the rows of 64 slots. find(i) returns row i, with
// address 0 if it is missing. They are there after CopyAsyncWait<0>() and a
// barrier.
template <class Tile, class Find>
KV_DEVICE void StartTile(const CacheRows& rows, const Find& find,
                         uint8_t* tile) {
  const uint32_t first = Warp() * kWarpRows;
  const CacheRow mine = find(first + Lane() % kWarpRows);
  tile += first * Tile::kPitch;
  if constexpr (Tile::kParts == 1) {
    if (rows.wide != 0) {
      CopyTile<Tile>(rows, mine, tile);
      return;
    }
  } else if (AreWide(DTypeTag<Tile::kDType>(), rows)) {
    DecodeWide<Tile>(rows, mine, tile);
    return;
  }
  DecodeNarrow<Tile>(rows, mine, tile);
}

// Stores the query rows of a block. address(r) is that of row r, 0 if it is
// missing. Products of row r are to be multiplied by scales[r].
template <class Address>
KV_DEVICE void StoreQueries(const CacheRows& rows, const Address& address,
                            uint8_t* queries, float* scales) {
  using Tag = DTypeTag<KV_Q_DTYPE>;
  constexpr uint32_t kOfLane = (kKeyDim + 31) / 32;
#pragma unroll 1
  for (uint32_t r = Warp(); r < kBlockRows; r += kAttendMmaWarps) {
    RowWith<kNoNumbers> row = {address(r)};
    float v[kOfLane];
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t n = 0; n < kOfLane; ++n) {
      const uint32_t e = n * 32 + Lane();
      v[n] = 0.0f;
      if (row.address != 0 && e < rows.head_dim) {
        v[n] = LoadElement(Tag(), rows, row, FindElement(Tag(), rows, e));
      }
      const uint32_t size = FromFloat<kF32>(v[n]) & 0x7fffffff;
      largest = size > largest ? size : largest;
    }
    float factor = 1.0f;
    if constexpr (kScalesQueries) {
#pragma unroll
      for (uint32_t mask = 16; mask > 0; mask /= 2) {
        const uint32_t other = ShuffleXor(largest, mask);
        largest = other > largest ? other : largest;
      }
      const float scale = ScaleOfLargest(largest);
      if (Lane() == 0) scales[r] = scale;
      factor = InverseOfPower(scale);
    }
#pragma unroll
    for (uint32_t n = 0; n < kOfLane; ++n) {
      const uint32_t e = n * 32 + Lane();
      if (e >= kKeyDim) continue;
#pragma unroll
      for (uint32_t part = 0; part < QueryTile::kParts; ++part) {
        StoreElement<QueryTile>(
            PartOf<QueryTile::kElement>(v[n] * factor, part > 0), part,
            queries + r * QueryTile::kPitch + e * 2);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_MMA_ROWS_CUH_
