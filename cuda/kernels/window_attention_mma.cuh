// Products of window_attention.cu by tensor cores: 16-bit elements, packed.
//
// A warp keeps the fragments of its query rows in registers. Tiles of keys are
// copied into two buffers in turn, beside the work on the other.
#ifndef KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_MMA_CUH_
#define KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_MMA_CUH_

#include "device.cuh"
#include "window_attention_rows.cuh"
#include "window_attention_softmax.cuh"

namespace kvevict::cuda {
namespace {

static_assert(CanUseMma(KV_Q_DTYPE, KV_K_DTYPE, KV_HEAD_DIM, KV_WINDOW, 80));

// Other warps hide a warp's latencies; a short loop stays in the cache.
constexpr uint32_t kUnrolledChunks = 1;

class Products {
 public:
  KV_DEVICE explicit Products(const Work& work) : work_(work) {
    KV_DYNAMIC_SHARED(buffers);
    buffers_ = buffers;
    KV_SHARED(uint64_t, key_rows, KV_PAGED ? 2 * kTileKeys : 1);
    key_rows_ = key_rows;
  }

  // To be followed by NextTile() for every tile of the split. One barrier after
  // the last Multiply() of the row block before.
  KV_DEVICE void Begin(uint32_t block) {
    FindKeyRows(0);
    if constexpr (KV_PAGED) BlockSync();
    StartTile(0);
    FindKeyRows(1);
    LoadQueries(block);
  }

  // A barrier at least: what the block's threads wrote before is seen after.
  KV_DEVICE void NextTile(uint32_t tile) {
    CopyAsyncWait<0>();
    BlockSync();
    if (tile + 1 < work_.n_tiles) {
      StartTile(tile + 1);
      FindKeyRows(tile + 2);
    }
    tile_ = tile;
  }

  KV_DEVICE Chunk Multiply(uint32_t c) const {
    Chunk chunk;
    // ldmatrix gives keys 0-7 and 8-15, elements 0-7 and 8-15 of each.
    const uint8_t* row = Buffer(tile_) +
                         (ChunkKey(c) + Lane() / 16 * 8 + Lane() % 8) * kPitch +
                         Lane() / 8 % 2 * 16;
    uint32_t keys[kAhead + 1][4];
    for (uint32_t k = 0; k < kSteps + kAhead; ++k) {
      if (k < kSteps) LoadMatrix4(keys[k % (kAhead + 1)], row + k * 32);
      if (k < kAhead) continue;
      MultiplyStep(k - kAhead, keys[(k - kAhead) % (kAhead + 1)], chunk);
    }
    return chunk;
  }

 private:
  static constexpr uint32_t kSteps = kHeadDim / 16;
  // Steps whose keys are on their way to the registers meanwhile: two, if pages
  // and scores of several heads leave room.
  static constexpr uint32_t kAhead = KV_PAGED || KV_OUT == 2 ? 1 : 2;
  static constexpr uint32_t kPitch = 2 * kHeadDim + 16;
  static constexpr uint32_t kPieces = kHeadDim / 8;  // of 16 bytes, per row

  KV_DEVICE void MultiplyStep(uint32_t k, const uint32_t (&keys)[4],
                              Chunk& chunk) const {
    const uint32_t low[2] = {keys[0], keys[1]};
    const uint32_t high[2] = {keys[2], keys[3]};
    for (uint32_t t = 0; t < kTilesPerWarp; ++t) {
      MultiplyAccumulate16816<KV_K_DTYPE>(chunk.x[t][0], queries_[t][k], low);
      MultiplyAccumulate16816<KV_K_DTYPE>(chunk.x[t][1], queries_[t][k], high);
    }
  }

  KV_DEVICE uint8_t* Buffer(uint32_t tile) const {
    return buffers_ + tile % 2 * (kTileKeys * kPitch);
  }

  // Paged keys: looks up the rows of a tile, one barrier before StartTile().
  KV_DEVICE void FindKeyRows(uint32_t tile) {
    if constexpr (KV_PAGED) {
      const uint32_t thread = Afresh(threadIdx.x);
      if (thread >= kTileKeys) return;
      const uint32_t key = work_.first_key + tile * kTileKeys + thread;
      key_rows_[tile % 2 * kTileKeys + thread] =
          key < work_.layer.n_tokens ? KeyRow(work_, key) : 0;
    }
  }

  KV_DEVICE void StartTile(uint32_t tile) {
    const uint32_t first = work_.first_key + tile * kTileKeys;
    const uint32_t thread = Afresh(threadIdx.x);
    constexpr uint32_t kCopies = kTileKeys * kPieces;
    for (uint32_t n = 0; n < CeilDiv(kCopies, kThreads); ++n) {
      const uint32_t i = n * kThreads + thread;
      if (kCopies % kThreads != 0 && i >= kCopies) break;
      // The same, told so that a thread's copies differ by constants.
      constexpr bool kSamePiece = kThreads % kPieces == 0;
      const uint32_t row = kSamePiece
                               ? n * (kThreads / kPieces) + thread / kPieces
                               : i / kPieces;
      const uint32_t piece = (kSamePiece ? thread : i) % kPieces;
      const uint64_t from = KV_PAGED ? key_rows_[tile % 2 * kTileKeys + row]
                                     : KeyRow(work_, first + row);
      CopyAsync16(Buffer(tile) + row * kPitch + piece * 16, from + piece * 16,
                  first + row < work_.layer.n_tokens);
    }
    CopyAsyncCommit();
  }

  KV_DEVICE void LoadQueries(uint32_t block) {
    for (uint32_t i = 0; i < kLaneRows; ++i) {
      const uint64_t row = QueryAddress(work_, block, LaneRow(i));
      for (uint32_t k = 0; k < 2 * kSteps; ++k) {
        queries_[i / 2][k / 2][k % 2 * 2 + i % 2] =
            row == 0 ? 0 : LoadGlobal<uint32_t>(row + k * 16 + Lane() % 4 * 4);
      }
    }
  }

  const Work& work_;
  uint8_t* buffers_;
  uint64_t* key_rows_;
  uint32_t tile_ = 0;
  uint32_t queries_[kTilesPerWarp][kSteps][4];
};

}  // namespace
}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WINDOW_ATTENTION_MMA_CUH_
