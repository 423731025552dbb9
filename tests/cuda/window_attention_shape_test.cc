// How window_attention.h and attention.h cut the work of a launch.
#include <algorithm>
#include <cstdio>
#include <initializer_list>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/window_attention.h"
#include "cuda/kernels/window_attention_few.h"

namespace kvevict::cuda {
namespace {

int failures = 0;

#define KV_EXPECT(condition)                                                 \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s, line %d: %s\n", what, __LINE__, #condition); \
      ++failures;                                                            \
    }                                                                        \
  } while (false)

// Every query row has its place, in blocks neither empty nor too large.
void ShapeCoversTheRows(bool use_mma, uint32_t q_dtype, uint32_t head_dim,
                        uint32_t window, uint32_t group, uint32_t sm) {
  const uint32_t tile_keys = TileKeys(use_mma, head_dim, sm);
  char what[80];
  std::snprintf(what, sizeof(what),
                "mma %d, queries %u, head_dim %u, window %u, group %u", use_mma,
                q_dtype, head_dim, window, group);
  const WindowAttentionShape s = ShapeWindowAttention(
      use_mma, q_dtype, head_dim, window, group, tile_keys);
  KV_EXPECT(s.threads % 32 == 0 && s.threads >= tile_keys && s.threads <= 256);
  KV_EXPECT(s.threads * s.blocks_per_sm <= 512);  // 128 registers each
  KV_EXPECT(s.row_warps * s.key_groups * 32 == s.threads);
  KV_EXPECT(s.row_warps * s.tiles_per_warp * kTileRows <= s.threads);
  KV_EXPECT(tile_keys / 16 % s.key_groups == 0);
  KV_EXPECT(s.row_warps * s.tiles_per_warp >= s.tiles_per_block);
  KV_EXPECT(s.tiles_per_head * kTileRows >= window);
  const uint32_t last = s.n_blocks - 1;
  if (s.blocks_per_head == 1) {
    KV_EXPECT(s.heads_per_block * s.tiles_per_head == s.tiles_per_block);
    KV_EXPECT(last * s.heads_per_block < group);
    KV_EXPECT(s.n_blocks * s.heads_per_block >= group);
  } else {
    KV_EXPECT(s.heads_per_block == 1);
    KV_EXPECT(s.n_blocks == group * s.blocks_per_head);
    KV_EXPECT(s.blocks_per_head * s.tiles_per_block >= s.tiles_per_head);
    KV_EXPECT((s.blocks_per_head - 1) * s.tiles_per_block < s.tiles_per_head);
    KV_EXPECT(!use_mma || !CanUseMma(q_dtype, 3, head_dim, window, 80));
  }
}

// Codes on their way take no block of threads from a multiprocessor.
void StagedTilesFit(bool use_mma, uint32_t head_dim, uint32_t window,
                    uint32_t group, uint32_t sm) {
  // Static memory, of tiles of 64 keys; the system has 1 KB.
  constexpr uint32_t kStaticBytes = 13 << 10;
  char what[80];
  std::snprintf(what, sizeof(what), "mma %d, head_dim %u, window %u, group %u",
                use_mma, head_dim, window, group);
  for (const uint32_t q_dtype : {kF32, kBF16}) {
    const uint32_t tile_keys = TileKeys(use_mma, head_dim, sm);
    const WindowAttentionShape s = ShapeWindowAttention(
        use_mma, q_dtype, head_dim, window, group, tile_keys);
    const auto blocks = [&](uint32_t n_staged) {
      const uint32_t n_bytes =
          SharedBytes(s, n_staged, tile_keys, head_dim) + kStaticBytes;
      return std::min(s.blocks_per_sm, (SharedKilobytes(sm) << 10) / n_bytes);
    };
    KV_EXPECT(blocks(StagedTiles(s, kE4M3, sm)) == blocks(0));
    KV_EXPECT(StagedTiles(s, kBF16, sm) == 0);
  }
}

void SplitsCoverTheKeys(uint32_t n_tokens) {
  char what[32];
  std::snprintf(what, sizeof(what), "%u tokens", n_tokens);
  const KeySplits s = SplitKeys(n_tokens);
  KV_EXPECT(s.n_splits >= 1 && s.n_splits <= 64);
  KV_EXPECT(s.keys_per_split % kMostTileKeys == 0);
  KV_EXPECT(uint64_t{s.n_splits} * s.keys_per_split >= n_tokens);
  KV_EXPECT(uint64_t{s.n_splits - 1} * s.keys_per_split < n_tokens);
  // A split is long enough to pay for its prologue.
  KV_EXPECT(s.n_splits == 1 || s.keys_per_split >= 1024);
}

// This comes on top of the scores: 1 / 64 of the keys in bf16.
void WorkspaceIsUnderTwoPercent() {
  const char* what = "Qwen3-8B, 16384 tokens";
  const uint64_t k_bytes = uint64_t{36} * 8 * 16384 * 128 * 2;
  const uint64_t score_bytes = uint64_t{36} * 8 * 16384 * 4;
  const uint64_t lse_bytes =
      PartialLseBytes(36, 8, SplitKeys(16384).n_splits, 64, 4);
  KV_EXPECT((score_bytes + lse_bytes) * 50 < k_bytes);
}

// A layer has up to 256 blocks of 64 slots at least, and half as many where it has
// tiles for all. n_others: KV heads times blocks of rows.
void SplitsOfAttentionFillAGpu(uint32_t n_tokens, uint32_t n_others) {
  char what[64];
  std::snprintf(what, sizeof(what), "%u tokens, %u others", n_tokens, n_others);
  const uint32_t most = MostSplits(n_others);
  const uint32_t slots = SlotsOfSplit(n_tokens, most);
  const uint64_t n_splits = SplitsOf(n_tokens, most);
  KV_EXPECT(slots >= 64 && slots % 64 == 0);
  KV_EXPECT(n_splits * slots >= n_tokens && (n_splits - 1) * slots < n_tokens);
  const uint64_t n_blocks = n_splits * n_others;
  KV_EXPECT(n_splits == 1 || n_blocks <= 256);
  const uint64_t n_tiles = uint64_t{n_tokens} / 64 * n_others;
  KV_EXPECT(n_tiles < 256 || 2 * n_blocks > 256);
}

void TakesTheTensorCoresWhereTheyFit() {
  const char* what = "CanUseMma";
  KV_EXPECT(CanUseMma(3, 3, 128, 64, 80));
  KV_EXPECT(CanUseMma(2, 2, 256, 128, 120));
  KV_EXPECT(!CanUseMma(3, 3, 128, 64, 75));
  KV_EXPECT(!CanUseMma(1, 1, 128, 64, 90));
  KV_EXPECT(!CanUseMma(2, 3, 128, 64, 90));
  KV_EXPECT(CanUseMma(3, kE4M3, 128, 64, 90));
  KV_EXPECT(CanUseMma(2, kI8, 128, 64, 80));
  KV_EXPECT(CanUseMma(1, 3, 128, 128, 80));
  KV_EXPECT(CanUseMma(1, 2, 256, 64, 89));
  KV_EXPECT(CanUseMma(1, kU8, 128, 64, 90));
  KV_EXPECT(!CanUseMma(1, 3, 128, 129, 90));
  KV_EXPECT(!CanUseMma(1, kU4, 128, 64, 90));
  KV_EXPECT(!CanUseMma(3, kU4, 128, 64, 90));
  KV_EXPECT(!CanUseMma(3, kQ8_0, 128, 64, 90));
  KV_EXPECT(!CanUseMma(3, 3, 120, 64, 90));
  KV_EXPECT(!CanUseMma(3, 3, 272, 64, 90));
  KV_EXPECT(!CanUseMma(3, 3, 256, 129, 90));
  KV_EXPECT(!CanUseMma(3, 3, 128, 257, 90));
}

void TakesFewRowsWhereThatPays() {
  const char* what = "TakesFewRows";
  KV_EXPECT(TakesFewRows(kBF16, kBF16, 128, 8));
  KV_EXPECT(!TakesFewRows(kBF16, kBF16, 128, 9));
  KV_EXPECT(!TakesFewRows(kF32, kF16, 128, 9));
  KV_EXPECT(TakesFewRows(kF32, kF32, 128, 16));
  KV_EXPECT(!TakesFewRows(kF32, kF32, 128, 17));
  KV_EXPECT(TakesFewRows(kF16, kBF16, 256, 16));
  KV_EXPECT(!TakesFewRows(kBF16, kU8, 128, 1));
  KV_EXPECT(TakesFewRows(kF32, kF32, 32, 1));
  KV_EXPECT(!TakesFewRows(kBF16, kBF16, 56, 1));
  KV_EXPECT(!TakesFewRows(kBF16, kBF16, 68, 1));
  KV_EXPECT(!TakesFewRows(kF32, kF32, 272, 1));
}

}  // namespace
}  // namespace kvevict::cuda

int main() {
  using namespace kvevict::cuda;
  for (bool use_mma : {false, true}) {
    for (uint32_t head_dim : {16u, 128u, 144u, 256u}) {
      for (uint32_t window = 1; window < 600; ++window) {
        for (uint32_t group = 1; group <= 40; ++group) {
          for (uint32_t q_dtype : {kF32, kBF16}) {
            ShapeCoversTheRows(use_mma, q_dtype, head_dim, window, group, 86);
            ShapeCoversTheRows(use_mma, q_dtype, head_dim, window, group, 90);
          }
          for (uint32_t sm : {80u, 86u, 90u}) {
            StagedTilesFit(use_mma, head_dim, window, group, sm);
          }
        }
      }
    }
  }
  for (uint32_t n = 1; n < 70'000; ++n) SplitsCoverTheKeys(n);
  for (uint32_t n : {131'072u, 1'000'000u, 2'147'483'647u}) {
    SplitsCoverTheKeys(n);
  }
  for (uint32_t n_others : {1u, 2u, 4u, 8u, 12u, 48u, 65u, 255u, 256u, 1000u}) {
    for (uint32_t n = 1; n < 70'000; n += n < 2000 ? 1 : 61) {
      SplitsOfAttentionFillAGpu(n, n_others);
    }
  }
  WorkspaceIsUnderTwoPercent();
  TakesTheTensorCoresWhereTheyFit();
  TakesFewRowsWhereThatPays();
  return failures == 0 ? 0 : 1;
}
