// Products of window_attention.cu by tensor cores: 16-bit elements, packed.
//
// A warp keeps the fragments of its query rows in registers; of f32 rows those
// of both parts, whose products are added up apart and joined at the end. Tiles of keys are
// copied to two buffers in turn, while the other one is used. Query rows come
// through the second buffer while the first tile is copied to the first.
// One-byte codes come through registers, where they become 16-bit elements;
// their products are multiplied by their rows' scales. With KV_STAGED_TILES a
// thread copies its codes to places of its own, so many tiles before it converts
// them.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_MMA_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_MMA_CUH_

#include "device.cuh"
#include "window_attention.h"
#include "window_attention_codes.cuh"
#include "window_attention_queries.cuh"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"

namespace kvevict::cuda {
namespace {

static_assert(kLogitHeads == 1);
static_assert(CanUseMma(KV_Q_DTYPE, KV_K_DTYPE, KV_HEAD_DIM, KV_WINDOW, 80));

class Products {
 public:
  // A short loop stays in the cache.
  static constexpr uint32_t kUnrolledChunks = 1;
  // Only the plain forms have registers for the products of two chunks, and
  // only large tiles have enough chunks.
  static constexpr bool kMayOverlap =
      kChunksPerWarp > 4 && kChunksPerWarp % 2 == 0 && !kSplits &&
      !kReadsQuantized && !kSpreads && KV_PAGED == 0 && KV_RAGGED == 0 &&
      KV_OUT == 0 && KV_LISTED == 0 && KV_SOFTCAP == 0 && KV_BIAS == 0 &&
      KV_MEASURE == 0;

  KV_DEVICE explicit Products(const Work& work) : work_(work) {
    KV_DYNAMIC_SHARED(buffers);
    buffers_ = buffers;
    KV_SHARED(uint64_t, key_rows, KV_PAGED ? kKeyRowTiles * kTileKeys : 1);
    key_rows_ = key_rows;
    KV_SHARED(float, query_scales, kScalesQueries ? kBlockRows : 1);
    query_scales_ = query_scales;
  }

  // Must be followed by NextTile() for every tile of the split. There must be
  // one barrier after the last Multiply() of the row block before.
  KV_DEVICE void Begin(uint32_t block) {
    for (uint32_t tile = 0; tile <= kStagedTiles; ++tile) FindKeyRows(tile);
    FindQueryRows(block);
    BlockSync();
    for (uint32_t tile = 0; tile < kStagedTiles; ++tile) StageTile(tile);
    PrepareTile(0);
    if constexpr (kStagedTiles > 0) scale_ = KeyScale(0);
    if constexpr (kScalesQueries) {
      ScaleOfRows<kBlockRows, kThreads, kHeadDim>(
          [&](uint32_t r) { return QueryPlace(r); }, query_scales_);
      BlockSync();
    }
#pragma unroll 1
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (round > 0) BlockSync();
      StartQueries(round);
      if constexpr (!kSplits) CopyAsyncWait<0>();
      BlockSync();
      TakeQueries(round);
    }
    FindScales(0);  // overwrites the places of queries
  }

  KV_DEVICE void Meet() const {}

  // Contains at least one barrier: what the block's threads wrote before is
  // visible after.
  KV_DEVICE void NextTile(uint32_t tile) {
    // Codes are stored by the threads themselves.
    if constexpr (!kReadsQuantized) CopyAsyncWait<0>();
    BlockSync();
    if (tile + 1 < work_.n_tiles()) {
      PrepareTile(tile + 1);
      FindScales(tile + 1);
    }
    tile_ = tile;
  }

  KV_DEVICE Chunk Multiply(uint32_t c) const {
    Chunk chunk;
    Chunk low;  // products of the queries' low parts
    // ldmatrix returns keys 0-7 and 8-15, elements 0-7 and 8-15 of each.
    const uint8_t* row = Buffer(tile_) +
                         (ChunkKey(c) + Lane() / 16 * 8 + Lane() % 8) * kPitch +
                         Lane() / 8 % 2 * 16;
    uint32_t keys[kAhead + 1][4];
    for (uint32_t k = 0; k < kSteps + kAhead; ++k) {
      if (k < kSteps) LoadMatrix4(keys[k % (kAhead + 1)], row + k * 32);
      if (k < kAhead) continue;
      MultiplyStep(k - kAhead, keys[(k - kAhead) % (kAhead + 1)], chunk, low);
    }
    if constexpr (kSplits) Join(low, chunk);
    if constexpr (kReadsQuantized) ScaleKeys(c, chunk);
    return chunk;
  }

 private:
  static constexpr uint32_t kSteps = kHeadDim / 16;
  // Fragments of a warp: tiles of rows, each followed by that of its low parts.
  static constexpr uint32_t kFragments = kParts * kTilesPerWarp;
  // Steps whose keys are being loaded to registers meanwhile: two, if pages,
  // scores of several heads, and lengths of heads with several row blocks leave
  // room.
  static constexpr uint32_t kAhead = KV_PAGED || KV_OUT == 2 ||
                                             kReadsQuantized ||
                                             (KV_RAGGED && kShape.n_blocks > 1)
                                         ? 1
                                         : 2;
  static constexpr uint32_t kPitch = 2 * kHeadDim + 16;
  static constexpr uint32_t kPieces = kHeadDim / 8;  // of 16 bytes, per row
  static constexpr uint32_t kStagedTiles = KV_STAGED_TILES;
  // Tiles of paged keys whose rows have been looked up.
  static constexpr uint32_t kKeyRowTiles = kStagedTiles + 2;
  // Rows of fragments come in several rounds if a tile has no room for all.
  static constexpr uint32_t kFragmentRows = kParts * kBlockRows;
  static constexpr uint32_t kRoundRows =
      kFragmentRows < kTileKeys ? kFragmentRows : kTileKeys;
  static constexpr uint32_t kRounds = CeilDiv(kFragmentRows, kRoundRows);

  KV_DEVICE void MultiplyStep(uint32_t k, const uint32_t (&keys)[4],
                              Chunk& chunk, Chunk& low) const {
    const uint32_t first[2] = {keys[0], keys[1]};
    const uint32_t last[2] = {keys[2], keys[3]};
    for (uint32_t f = 0; f < kFragments; ++f) {
      auto& x = (f % kParts == 0 ? chunk : low).x[f / kParts];
      MultiplyAccumulate16816<kElement>(x[0], queries_[f][k], first);
      MultiplyAccumulate16816<kElement>(x[1], queries_[f][k], last);
    }
  }

  // Adds the products of the low parts, and takes back the rows' scales. With
  // an infinite key the high parts alone tell which infinity the product is.
  KV_DEVICE void Join(const Chunk& low, Chunk& chunk) const {
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      const float scale = kScalesQueries ? query_scales_[LaneRow(i)] : 1.0f;
      for (uint32_t j = 0; j < 4; ++j) {
        float& x = chunk.x[i / 2][j / 2][i % 2 * 2 + j % 2];
        if (x - x == 0.0f) x += low.At(i, j);
        if (kScalesQueries) x *= scale;
      }
    }
  }

  KV_DEVICE uint8_t* Buffer(uint32_t tile) const {
    return buffers_ + tile % 2 * (kTileKeys * kPitch);
  }

  // Looks up the rows of a tile of paged keys, one barrier before they are read.
  KV_DEVICE void FindKeyRows(uint32_t tile) {
    if constexpr (KV_PAGED) {
      const uint32_t thread = Afresh(threadIdx.x);
      if (thread >= kTileKeys) return;
      const uint32_t key = work_.first_key + tile * kTileKeys + thread;
      key_rows_[tile % kKeyRowTiles * kTileKeys + thread] =
          key < work_.n_tokens() ? KeyRow(work_, key) : 0;
    }
  }

  // Starts copying rows of kPieces times 16 bytes to shared memory, kTo bytes
  // apart, as one group. find(row, is_there) returns a row's address.
  template <uint32_t kRows, uint32_t kPieces, uint32_t kTo, class Find>
  KV_DEVICE void StartRows(uint8_t* to, const Find& find) {
    const uint32_t thread = Afresh(threadIdx.x);
    constexpr uint32_t kCopies = kRows * kPieces;
    for (uint32_t n = 0; n < CeilDiv(kCopies, kThreads); ++n) {
      const uint32_t i = n * kThreads + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      // The same row, computed so that a thread's copies differ by constants.
      constexpr bool kSamePiece = kThreads % kPieces == 0;
      const uint32_t row = kSamePiece
                               ? n * (kThreads / kPieces) + thread / kPieces
                               : i / kPieces;
      const uint32_t piece = (kSamePiece ? thread : i) % kPieces;
      bool is_there;
      const uint64_t from = find(row, is_there);
      CopyAsync16(to + row * kTo + piece * 16, from + piece * 16, is_there);
    }
    CopyAsyncCommit();
  }

  // Calls start(find) to load the rows of a tile.
  template <class Start>
  KV_DEVICE void WithKeyRows(uint32_t tile, const Start& start) const {
    const uint32_t first = work_.first_key + tile * kTileKeys;
    start([&](uint32_t row, bool& is_there) {
      is_there = first + row < work_.n_tokens();
      return KV_PAGED ? key_rows_[tile % kKeyRowTiles * kTileKeys + row]
                      : KeyRow(work_, first + row);
    });
  }

  // Begins to make a tile ready. One barrier before, its buffer was read for the
  // last time.
  KV_DEVICE void PrepareTile(uint32_t tile) {
    if constexpr (kStagedTiles > 0) {
      TakeCodes(tile);
      StageTile(tile + kStagedTiles);
    } else {
      WithKeyRows(tile, [&](const auto& find) {
        if constexpr (kReadsQuantized) {
          ConvertRows<kTileKeys, kThreads, kHeadDim, kPitch>(Buffer(tile),
                                                             find);
        } else {
          StartRows<kTileKeys, kPieces, kPitch>(Buffer(tile), find);
        }
      });
    }
    FindKeyRows(tile + kStagedTiles + 1);
  }

  // ---- Codes on their way ----

  static constexpr uint32_t kCodePieces = kHeadDim / 16;  // per row

  // The codes of a tile are after the buffers.
  KV_DEVICE uint8_t* Codes(uint32_t tile) const {
    return buffers_ + 2 * kTileKeys * kPitch +
           tile % (kStagedTiles > 0 ? kStagedTiles : 1) *
               (kTileKeys * kHeadDim);
  }

  // Starts copying the codes of a tile, or closes a group of no copies if the
  // split has no such tile.
  KV_DEVICE void StageTile(uint32_t tile) {
    if (tile >= work_.n_tiles()) return CopyAsyncCommit();
    WithKeyRows(tile, [&](const auto& find) {
      StartRows<kTileKeys, kCodePieces, kHeadDim>(Codes(tile), find);
    });
  }

  // Converts the codes of a tile that this thread copied.
  KV_DEVICE void TakeCodes(uint32_t tile) {
    constexpr uint32_t kCopies = kTileKeys * kCodePieces;
    CopyAsyncWait<int{kStagedTiles} - 1>();
    const uint32_t thread = Afresh(threadIdx.x);
#pragma unroll
    for (uint32_t n = 0; n < CeilDiv(kCopies, kThreads); ++n) {
      const uint32_t i = n * kThreads + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      StoreElements(
          Buffer(tile) + i / kCodePieces * kPitch + i % kCodePieces * 32,
          reinterpret_cast<const Bytes16*>(Codes(tile))[i]);
    }
  }

  // ---- Scales of keys that are codes ----

  // Scales are after the rows of the buffers.
  KV_DEVICE float* ScalePlace(uint32_t tile, uint32_t key) const {
    return reinterpret_cast<float*>(Buffer(tile) + key * kPitch + 2 * kHeadDim);
  }

  // The scale of this thread's key of a tile; 0 if there is none.
  KV_DEVICE float KeyScale(uint32_t tile) const {
    const uint32_t thread = Afresh(threadIdx.x);
    const uint32_t key = work_.first_key + tile * kTileKeys + thread;
    if (thread >= kTileKeys || key >= work_.n_tokens()) return 0.0f;
    return NumberOf(work_.p.keys, work_.p.scale, work_.layer.block_table,
                    work_.kv_head, key, 1.0f);
  }

  // A scale is loaded a tile before it is stored if codes are on their way too.
  KV_DEVICE void FindScales(uint32_t tile) {
    if constexpr (kReadsQuantized) {
      const uint32_t thread = Afresh(threadIdx.x);
      const float scale = kStagedTiles > 0 ? scale_ : KeyScale(tile);
      if (thread < kTileKeys) *ScalePlace(tile, thread) = scale;
      if constexpr (kStagedTiles > 0) scale_ = KeyScale(tile + 1);
    }
  }

  KV_DEVICE void ScaleKeys(uint32_t c, Chunk& chunk) const {
    for (uint32_t j = 0; j < 4; ++j) {
      const float scale =
          *ScalePlace(tile_, ChunkKey(c) + LaneKey() + kKeyStep[j]);
      for (uint32_t i = 0; i < kLaneRows; ++i) {
        chunk.x[i / 2][j / 2][i % 2 * 2 + j % 2] *= scale;
      }
    }
  }

  // The place of query row r's address: after the rows of the buffers, two to a
  // row.
  KV_DEVICE uint64_t& QueryPlace(uint32_t r) {
    static_assert(kBlockRows <= 4 * kTileKeys);
    return reinterpret_cast<uint64_t*>(buffers_ + r / 2 * kPitch +
                                       2 * kHeadDim)[r % 2];
  }

  // There must be one barrier before StartQueries().
  KV_DEVICE void FindQueryRows(uint32_t block) {
    const uint32_t thread = Afresh(threadIdx.x);
    if (thread >= kBlockRows) return;
    QueryPlace(thread) = QueryAddress(work_, block, thread);
  }

  KV_DEVICE void StartQueries(uint32_t round) {
    const auto find = [&](uint32_t row, bool& is_there) {
      const uint32_t r = round * kRoundRows + row;
      const bool in_block =
          kFragmentRows % kRoundRows == 0 || r < kFragmentRows;
      const uint64_t from = in_block ? QueryPlace(RowOfFragments(r)) : 0;
      is_there = from != 0;
      return from;
    };
    if constexpr (kSplits) {
      SplitRows<kRoundRows, kThreads, kHeadDim, kPitch>(
          Buffer(1), find, [&](uint32_t row) {
            const uint32_t r = RowOfFragments(round * kRoundRows + row);
            return kScalesQueries ? query_scales_[r] : 1.0f;
          });
    } else {
      StartRows<kRoundRows, kPieces, kPitch>(Buffer(1), find);
    }
  }

  // Loads the rows of this warp if they are in this round.
  KV_DEVICE void TakeQueries(uint32_t round) {
    constexpr uint32_t kWarpRows = kFragments * kTileRows;
    static_assert(kRoundRows % kWarpRows == 0);
    const uint32_t thread = Afresh(threadIdx.x);
    const uint32_t first = thread / 32 % kShape.row_warps * kWarpRows;
    if (kRounds > 1 && first / kRoundRows != round) return;
    // ldmatrix returns rows 0-7 and 8-15, elements 0-7 and 8-15 of each.
    const uint8_t* row = Buffer(1) +
                         (first % kRoundRows + thread % 16) * kPitch +
                         thread / 16 % 2 * 16;
#pragma unroll
    for (uint32_t f = 0; f < kFragments; ++f) {
#pragma unroll
      for (uint32_t k = 0; k < kSteps; ++k) {
        LoadMatrix4(queries_[f][k], row + f * kTileRows * kPitch + k * 32);
      }
    }
  }

  const Work& work_;
  uint8_t* buffers_;
  uint64_t* key_rows_;
  float* query_scales_;
  float scale_ = 0.0f;  // of this thread's key of the next tile, staged
  uint32_t tile_ = 0;
  uint32_t queries_[kFragments][kSteps][4];
};

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_MMA_CUH_
