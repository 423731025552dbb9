// Products of window_attention.cu in f32: any dtypes, strides and head_dim.
//
// One slice of the elements of all queries and keys of a tile at a time is in
// shared memory. A lane multiplies 4 rows by 4 keys of each chunk. Slices of 16
// elements are converted to f32 when they are loaded. From sm_80 on, contiguous
// f32 at multiples of 16 bytes is copied in slices of 8, some slices ahead of
// the arithmetic.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FMA_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FMA_CUH_

#include "device.cuh"
#include "window_attention.h"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"

namespace kvevict::cuda {
namespace {

// Elements of a row in shared memory at once, and floats from row to row: 8
// rows that are read at once are in different banks.
template <uint32_t kElements>
struct Slice {
  static constexpr uint32_t kPitch = kElements + 4;
  static constexpr uint32_t kQueryFloats = kBlockRows * kPitch;
  static constexpr uint32_t kFloats = kQueryFloats + kTileKeys * kPitch;
};
using ConvertedSlice = Slice<16>;
using CopiedSlice = Slice<8>;

constexpr bool kMayCopy = kArch >= 800 && KV_Q_DTYPE == kF32 &&
                          KV_K_DTYPE == kF32 && kHeadDim % 4 == 0 &&
                          kLogitHeads == 1 && KV_CHUNKS == 0;
constexpr uint32_t kCopiedSlices = CeilDiv(kHeadDim, 8);
constexpr uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }
constexpr uint32_t Most(uint32_t a, uint32_t b) { return a < b ? b : a; }
// Slices that fit in 30 KB, at most those of a tile and the first of the next.
constexpr uint32_t kStages =
    Least(Least(4, kCopiedSlices + 1),
          Most(2, 30 * 1024 / sizeof(float) / CopiedSlice::kFloats));
constexpr uint32_t kSliceFloats = Most(
    kMayCopy ? kStages * CopiedSlice::kFloats : 0, ConvertedSlice::kFloats);

struct alignas(16) Floats4 {
  float x[4];
};

class Products {
 public:
  // All are unrolled: a lane's chunks are registers, which cannot be indexed.
  static constexpr uint32_t kUnrolledChunks = kChunksPerWarp;
  // A tile is multiplied as a whole.
  static constexpr bool kMayOverlap = false;

  KV_DEVICE explicit Products(const Work& work)
      : work_(work), copies_(kMayCopy && CanCopy(work)) {
    KV_SHARED(float, slices, kSliceFloats);
    KV_SHARED(uint64_t, query_rows, kBlockRows);
    KV_SHARED(CacheRow, key_rows, kMayCopy ? 2 * kTileKeys : kTileKeys);
    slices_ = slices;
    query_rows_ = query_rows;
    key_rows_ = key_rows;
  }

  // Must be followed by NextTile() for every tile of the split.
  KV_DEVICE void Begin(uint32_t block) {
    if (threadIdx.x < kBlockRows) {
      query_rows_[threadIdx.x] = QueryAddress(work_, block, threadIdx.x);
    }
    if (copies_) FindKeys(0);
  }

  // A barrier between Begin() and the first tile, if copies need one: addresses
  // are known, and the earlier slices have been used.
  KV_DEVICE void Meet() const {
    if (kMayCopy && copies_) BlockSync();
  }

  // Contains at least one barrier: what the block's threads wrote before is
  // visible after.
  KV_DEVICE void NextTile(uint32_t tile) {
    if constexpr (kMayCopy) {
      if (copies_) {
        MultiplyCopied(tile);
        return;
      }
    }
    FindKeys(tile);
    MultiplyTile(tile, 0);
    if constexpr (kLogitHeads > 1) {
      Chunk highest[kChunksPerWarp];
      for (uint32_t c = 0; c < kChunksPerWarp; ++c) highest[c] = chunks_[c];
#pragma unroll 1
      for (uint32_t head = 1; head < kLogitHeads; ++head) {
        MultiplyTile(tile, head * work_.p.query_head_stride);
        for (uint32_t c = 0; c < kChunksPerWarp; ++c) {
          TakeLarger(chunks_[c], highest[c]);
        }
      }
      for (uint32_t c = 0; c < kChunksPerWarp; ++c) chunks_[c] = highest[c];
    }
  }

  KV_DEVICE const Chunk& Multiply(uint32_t c) const { return chunks_[c]; }

 private:
  // ---- Addresses of rows ----

  KV_DEVICE static const CacheRow& RowOf(const CacheRow& row) { return row; }
  KV_DEVICE static CacheRow RowOf(uint64_t query) {
    CacheRow row{};
    row.address = query;
    return row;
  }

  KV_DEVICE CacheRow* KeysOf(uint32_t tile) {
    return key_rows_ + (kMayCopy ? tile % 2 * kTileKeys : 0);
  }
  KV_DEVICE void FindKeys(uint32_t tile) {
    if (threadIdx.x >= kTileKeys) return;
    const uint32_t key = work_.first_key + tile * kTileKeys + threadIdx.x;
    KeysOf(tile)[threadIdx.x] =
        key < work_.n_tokens() ? FindKey(key) : CacheRow{};
  }

  KV_DEVICE CacheRow FindKey(uint32_t key) const {
    CacheRow row;
    if (FindRecent(work_.p, work_.kv_head, key, row)) return row;
    row.address = KeyRow(work_, key);
    FindNumbers(work_.p, work_.p.keys, work_.layer.block_table, work_.kv_head,
                key, row);
    return row;
  }

  // ---- Slices that are copied ----

  KV_DEVICE static bool CanCopy(const Work& work) {
    const ScoreParams& p = work.p;
    const RowLayout& keys = p.keys;
    const uint64_t base = (keys.far & kFarAddresses) == 0 ? work.layer.keys : 0;
    const uint64_t all =
        work.layer.queries | base |
        static_cast<uint64_t>(p.query_row_stride | p.query_head_stride |
                              keys.row_stride | keys.head_stride |
                              keys.block_stride);
    return all % 16 == 0 && p.query_element_stride == 4 &&
           keys.element_stride == 4 && keys.group_elems == 0;
  }

  // Computes the products of a tile. Some copies of its slices were started
  // before, and some of the next tile's are started here.
  KV_DEVICE void MultiplyCopied(uint32_t tile) {
    if (tile == 0) {
      for (uint32_t i = 0; i + 1 < kStages; ++i) CopySlice(tile, i);
    }
    if (tile + 1 < work_.n_tiles()) FindKeys(tile + 1);
    for (Chunk& chunk : chunks_) chunk = {};
#pragma unroll 1
    for (uint32_t i = 0; i < kCopiedSlices; ++i) {
      CopyAsyncWait<kStages - 2>();
      // The slice and addresses are visible to all, and the slice before has
      // been used.
      BlockSync();
      CopySlice(tile, i + kStages - 1);
      MultiplySlice<CopiedSlice>(StageOf(tile, i));
    }
  }

  KV_DEVICE float* StageOf(uint32_t tile, uint32_t slice) {
    return slices_ +
           (tile * kCopiedSlices + slice) % kStages * CopiedSlice::kFloats;
  }

  // Copies a slice. Slices past the tile's belong to the next tile; after the
  // last tile there are none.
  KV_DEVICE void CopySlice(uint32_t tile, uint32_t slice) {
    float* const to = StageOf(tile, slice);
    if (slice >= kCopiedSlices) {
      ++tile;
      slice -= kCopiedSlices;
    }
    if (tile < work_.n_tiles()) {
      CopyRows<kBlockRows>(query_rows_, slice * 8, to);
      CopyRows<kTileKeys>(KeysOf(tile), slice * 8,
                          to + CopiedSlice::kQueryFloats);
    }
    CopyAsyncCommit();
  }

  // Writes zeros past the row's end and for missing rows.
  template <uint32_t kRows, class Row>
  KV_DEVICE static void CopyRows(const Row* rows, uint32_t first, float* to) {
    constexpr uint32_t kCopies = 2 * kRows;
#pragma unroll
    for (uint32_t n = 0; n < CeilDiv(kCopies, kThreads); ++n) {
      const uint32_t i = n * kThreads + threadIdx.x;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      const uint32_t element = i % 2 * 4;
      const uint64_t row = RowOf(rows[i / 2]).address;
      CopyAsync16(to + i / 2 * CopiedSlice::kPitch + element,
                  row + (first + element) * sizeof(float),
                  row != 0 && first + element < kHeadDim);
    }
  }

  // ---- Slices that are converted ----

  // Computes products with the query rows at query_offset bytes from those of
  // query_rows_.
  KV_DEVICE void MultiplyTile(uint32_t tile, int64_t query_offset) {
    for (Chunk& chunk : chunks_) chunk = {};
#pragma unroll 1
    for (uint32_t first = 0; first < kHeadDim; first += 16) {
      // Addresses are known, and the slice before has been used.
      BlockSync();
      const int64_t query_step = work_.p.query_element_stride;
      LoadSlice<KV_Q_DTYPE, kBlockRows, 4>(
          query_rows_, first,
          [&](uint32_t i) {
            return ElementPlace{query_offset + i * query_step, 0, 0, i};
          },
          slices_);
      const RowLayout& keys = work_.p.keys;
      constexpr DTypeTag<KV_K_DTYPE> kKeys;
      float* const key_slices = slices_ + ConvertedSlice::kQueryFloats;
      if (kKeys.kIsPlain && keys.group_elems == 0) {
        LoadSlice<KV_K_DTYPE, kTileKeys, 4>(
            KeysOf(tile), first,
            [&](uint32_t i) {
              return ElementPlace{i * keys.element_stride, 0, 0, i};
            },
            key_slices);
      } else {  // one at a time, since divisions take registers
        LoadSlice<KV_K_DTYPE, kTileKeys, 1>(
            KeysOf(tile), first,
            [&](uint32_t i) { return FindElement(kKeys, keys, kHeadDim, i); },
            key_slices);
      }
      BlockSync();
      MultiplySlice<ConvertedSlice>(slices_);
    }
  }

  KV_DEVICE static void TakeLarger(const Chunk& from, Chunk& to) {
    for (uint32_t t = 0; t < kTilesPerWarp; ++t) {
      for (uint32_t i = 0; i < 8; ++i) {
        to.x[t][i / 4][i % 4] =
            Larger(from.x[t][i / 4][i % 4], to.x[t][i / 4][i % 4]);
      }
    }
  }

  // Writes zeros past the row's end and for missing rows.
  template <int kDType, uint32_t kRows, int kAtOnce, class Row, class PlaceOf>
  KV_DEVICE void LoadSlice(const Row* rows, uint32_t first,
                           const PlaceOf& place_of, float* slices) const {
    constexpr uint32_t kLoads = kRows * 16;
#pragma unroll kAtOnce
    for (uint32_t n = 0; n < CeilDiv(kLoads, kThreads); ++n) {
      const uint32_t i = n * kThreads + threadIdx.x;
      if (kLoads % kThreads != 0 && i >= kLoads) break;
      const uint32_t row = i / 16;
      const uint32_t element = i % 16;
      float v = 0.0f;
      const CacheRow stored = RowOf(rows[row]);
      if (stored.address != 0 && first + element < kHeadDim) {
        v = LoadElement(DTypeTag<kDType>(), work_.p, stored,
                        place_of(first + element));
      }
      slices[row * ConvertedSlice::kPitch + element] = v;
    }
  }

  // ---- The arithmetic ----

  template <class Slice>
  KV_DEVICE void MultiplySlice(const float* slices) {
    // One address each; the offsets are compile-time constants.
    constexpr uint32_t kPitch = Slice::kPitch;
    const float* queries = slices + LaneRow(0) * kPitch;
    const float* keys =
        slices + Slice::kQueryFloats + (ChunkKey(0) + LaneKey()) * kPitch;
#pragma unroll 1
    for (uint32_t e = 0; e < kPitch - 4; e += 4) {
      Floats4 q[kLaneRows];
      for (uint32_t i = 0; i < kLaneRows; ++i) {
        q[i] = Load4(queries + e + 8 * i * kPitch);
      }
      for (uint32_t c = 0; c < kChunksPerWarp; ++c) {
        for (uint32_t j = 0; j < 4; ++j) {
          const Floats4 k = Load4(keys + e + (16 * c + kKeyStep[j]) * kPitch);
          for (uint32_t i = 0; i < kLaneRows; ++i) {
            float& x = chunks_[c].x[i / 2][j / 2][i % 2 * 2 + j % 2];
            for (uint32_t n = 0; n < 4; ++n) x = Fma(q[i].x[n], k.x[n], x);
          }
        }
      }
    }
  }

  KV_DEVICE static Floats4 Load4(const float* shared) {
    return *reinterpret_cast<const Floats4*>(shared);
  }

  const Work& work_;
  const bool copies_;
  float* slices_;
  uint64_t* query_rows_;
  CacheRow* key_rows_;
  Chunk chunks_[kChunksPerWarp];
};

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FMA_CUH_
