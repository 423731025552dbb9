// Products of window_attention.cu in f32: any dtypes, strides and head_dim.
//
// Sixteen elements of all queries and keys of a tile at a time are converted to
// f32 in shared memory; a lane multiplies 4 rows by 4 keys of each chunk.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FMA_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FMA_CUH_

#include "device.cuh"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"

namespace kvevict::cuda {
namespace {

constexpr uint32_t kSlice = 16;  // elements of a row in shared memory at once
// Floats from row to row: 8 rows that are read at once lie in different banks.
constexpr uint32_t kSlicePitch = kSlice + 4;
constexpr uint32_t kQueryFloats = kBlockRows * kSlicePitch;
constexpr uint32_t kKeyFloats = kTileKeys * kSlicePitch;

struct alignas(16) Floats4 {
  float x[4];
};

// All: a lane's chunks are registers, which have no index.
constexpr uint32_t kUnrolledChunks = kChunksPerWarp;

class Products {
 public:
  KV_DEVICE explicit Products(const Work& work) : work_(work) {
    KV_SHARED(float, query_slices, kQueryFloats);
    KV_SHARED(float, key_slices, kKeyFloats);
    KV_SHARED(CacheRow, query_rows, kBlockRows);
    KV_SHARED(CacheRow, key_rows, kTileKeys);
    query_slices_ = query_slices;
    key_slices_ = key_slices;
    query_rows_ = query_rows;
    key_rows_ = key_rows;
  }

  // To be followed by NextTile() for every tile of the split.
  KV_DEVICE void Begin(uint32_t block) {
    if (threadIdx.x < kBlockRows) {
      query_rows_[threadIdx.x].address =
          QueryAddress(work_, block, threadIdx.x);
    }
  }

  // A barrier at least: what the block's threads wrote before is seen after.
  KV_DEVICE void NextTile(uint32_t tile) {
    if (threadIdx.x < kTileKeys) {
      const uint32_t key = work_.first_key + tile * kTileKeys + threadIdx.x;
      key_rows_[threadIdx.x] =
          key < work_.n_tokens() ? FindKey(key) : CacheRow{};
    }
    MultiplyTile(0);
    if constexpr (kLogitHeads > 1) {
      Chunk highest[kChunksPerWarp];
      for (uint32_t c = 0; c < kChunksPerWarp; ++c) highest[c] = chunks_[c];
#pragma unroll 1
      for (uint32_t head = 1; head < kLogitHeads; ++head) {
        MultiplyTile(head * work_.p.query_head_stride);
        for (uint32_t c = 0; c < kChunksPerWarp; ++c) {
          TakeLarger(chunks_[c], highest[c]);
        }
      }
      for (uint32_t c = 0; c < kChunksPerWarp; ++c) chunks_[c] = highest[c];
    }
  }

  KV_DEVICE const Chunk& Multiply(uint32_t c) const { return chunks_[c]; }

 private:
  KV_DEVICE CacheRow FindKey(uint32_t key) const {
    CacheRow row;
    row.address = KeyRow(work_, key);
    FindNumbers(work_.p, work_.p.keys, work_.layer.block_table, work_.kv_head,
                key, row);
    return row;
  }

  // Products with the query rows so many bytes behind those of query_rows_.
  KV_DEVICE void MultiplyTile(int64_t query_offset) {
    for (Chunk& chunk : chunks_) chunk = {};
#pragma unroll 1
    for (uint32_t first = 0; first < kHeadDim; first += kSlice) {
      // Addresses are there; the slice before has been used.
      BlockSync();
      const int64_t query_step = work_.p.query_element_stride;
      LoadSlice<KV_Q_DTYPE, kBlockRows, 4>(
          query_rows_, first,
          [&](uint32_t i) {
            return ElementPlace{query_offset + i * query_step, 0, 0};
          },
          query_slices_);
      const RowLayout& keys = work_.p.keys;
      constexpr DTypeTag<KV_K_DTYPE> kKeys;
      if (kKeys.kIsPlain && keys.group_elems == 0) {
        LoadSlice<KV_K_DTYPE, kTileKeys, 4>(
            key_rows_, first,
            [&](uint32_t i) {
              return ElementPlace{i * keys.element_stride, 0, 0};
            },
            key_slices_);
      } else {  // one at a time: divisions take registers
        LoadSlice<KV_K_DTYPE, kTileKeys, 1>(
            key_rows_, first,
            [&](uint32_t i) { return FindElement(kKeys, keys, kHeadDim, i); },
            key_slices_);
      }
      BlockSync();
      MultiplySlice();
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

  // Zeros beyond the row's end and in rows that are none.
  template <int kDType, uint32_t kRows, int kAtOnce, class PlaceOf>
  KV_DEVICE void LoadSlice(const CacheRow* rows, uint32_t first,
                           const PlaceOf& place_of, float* slices) {
    constexpr uint32_t kLoads = kRows * kSlice;
#pragma unroll kAtOnce
    for (uint32_t n = 0; n < CeilDiv(kLoads, kThreads); ++n) {
      const uint32_t i = n * kThreads + threadIdx.x;
      if (kLoads % kThreads != 0 && i >= kLoads) break;
      const uint32_t row = i / kSlice;
      const uint32_t element = i % kSlice;
      float v = 0.0f;
      if (rows[row].address != 0 && first + element < kHeadDim) {
        v = LoadElement(DTypeTag<kDType>(), rows[row],
                        place_of(first + element));
      }
      slices[row * kSlicePitch + element] = v;
    }
  }

  KV_DEVICE void MultiplySlice() {
    // One address each, and offsets that are known now.
    const float* queries = query_slices_ + LaneRow(0) * kSlicePitch;
    const float* keys = key_slices_ + (ChunkKey(0) + LaneKey()) * kSlicePitch;
#pragma unroll 1
    for (uint32_t e = 0; e < kSlice; e += 4) {
      Floats4 q[kLaneRows];
      for (uint32_t i = 0; i < kLaneRows; ++i) {
        q[i] = Load4(queries + e + 8 * i * kSlicePitch);
      }
      for (uint32_t c = 0; c < kChunksPerWarp; ++c) {
        for (uint32_t j = 0; j < 4; ++j) {
          const Floats4 k =
              Load4(keys + e + (16 * c + kKeyStep[j]) * kSlicePitch);
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
  float* query_slices_;
  float* key_slices_;
  CacheRow* query_rows_;
  CacheRow* key_rows_;
  Chunk chunks_[kChunksPerWarp];
};

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_FMA_CUH_
