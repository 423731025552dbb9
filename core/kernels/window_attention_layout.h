// Where the parts of window attention's scratch lie; the same for every CPU
// target.
#ifndef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_LAYOUT_H_
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/window_attention.h"

namespace kvevict {

// Keys per tile. A tile of f32 keys of 128 elements fills an L1 cache of 32
// KiB; a panel of it stays there while all queries pass.
inline constexpr size_t kTileKeys = 64;

// Most query rows that a target's matrix product takes at once.
inline constexpr size_t kMaxRowsPerBlock = 8;

// Floats from one staged key row to the next: padded to whole vectors, and 64
// bytes more so that rows of 4 KiB do not share a cache set.
constexpr size_t StagedRowStride(size_t head_dim) {
  return (head_dim + 15) / 16 * 16 + 16;
}

// Offsets in bytes, all multiples of 64. A "row" is a query: group * window of
// them.
class WindowAttentionLayout {
 public:
  // With room for the exponentials of so many tiles, or all.
  WindowAttentionLayout(uint32_t n_tokens, uint32_t window, uint32_t group,
                        uint32_t head_dim, size_t most_exp_tiles)
      : n_tiles((size_t{n_tokens} + kTileKeys - 1) / kTileKeys),
        n_exp_tiles(std::min(n_tiles, most_exp_tiles)) {
    const CheckedSize rows = CheckedSize(group) * CheckedSize(window);
    // Enough for the last block, whatever its size, and for whole vectors.
    const CheckedSize padded =
        (rows + CheckedSize(kMaxRowsPerBlock - 1)).AlignUp(16);
    const CheckedSize f32 = sizeof(float);
    n_rows = rows.value();
    n_padded_rows = padded.value();
    const CheckedSize padded_dim = CheckedSize(head_dim).AlignUp(16);
    queries = Add(padded * CheckedSize(head_dim) * f32);
    staged = Add(CheckedSize(16 * StagedRowStride(head_dim)) * f32);
    panels = Add(padded_dim * CheckedSize(kTileKeys) * f32);
    logits = Add(padded * CheckedSize(kTileKeys) * f32);
    references = Add(padded * f32);
    sums = Add(padded * CheckedSize(sizeof(double)));
    inverse_sums = Add(padded * f32);
    tile_references = Add(CheckedSize(n_tiles) * padded * f32);
    exps = Add(CheckedSize(n_exp_tiles) * ExpTileBytes(rows));
  }

  // As many as fit in scratch that has room for one.
  static WindowAttentionLayout ThatFits(uint32_t n_tokens, uint32_t window,
                                        uint32_t group, uint32_t head_dim,
                                        size_t scratch_bytes) {
    const WindowAttentionLayout least(n_tokens, window, group, head_dim, 1);
    return {n_tokens, window, group, head_dim,
            1 + (scratch_bytes - least.bytes()) /
                    ExpTileBytes(CheckedSize(least.n_rows)).value()};
  }

  // SIZE_MAX if the sizes do not fit in size_t.
  size_t bytes() const { return end_.ok() ? end_.value() : SIZE_MAX; }

  size_t n_tiles;
  size_t n_exp_tiles;
  size_t n_rows = 0;
  size_t n_padded_rows = 0;

  size_t queries = 0;  // f32 [block, head_dim, rows per block], scaled
  size_t staged = 0;  // f32 [16, StagedRowStride()] keys on their way to panels
  size_t panels =
      0;  // f32 [panel, padded head_dim, keys per panel] of one tile
  size_t logits = 0;  // f32 [n_padded_rows, kTileKeys] of one tile, in base 2
  size_t references = 0;  // f32 [n_padded_rows]: what exponents are relative to
  size_t sums = 0;        // f64 [n_padded_rows]
  size_t inverse_sums = 0;     // f32 [n_padded_rows]
  size_t tile_references = 0;  // f32 [n_tiles, n_padded_rows]
  size_t exps = 0;             // f32 [n_exp_tiles, n_rows, kTileKeys]

 private:
  static CheckedSize ExpTileBytes(CheckedSize rows) {
    return rows * CheckedSize(kTileKeys) * CheckedSize(sizeof(float));
  }
  size_t Add(CheckedSize bytes) {
    const CheckedSize begin = end_;
    end_ = (end_ + bytes).AlignUp(64);
    return begin.value();
  }

  CheckedSize end_ = 0;
};

// The parts as pointers.
struct WindowAttentionScratch {
  WindowAttentionScratch(const WindowAttentionLayout& layout, void* memory)
      : n_tiles(layout.n_tiles),
        n_exp_tiles(layout.n_exp_tiles),
        n_rows(layout.n_rows),
        n_padded_rows(layout.n_padded_rows) {
    uint8_t* bytes = static_cast<uint8_t*>(memory);
    const auto floats = [bytes](size_t offset) {
      return reinterpret_cast<float*>(bytes + offset);
    };
    queries = floats(layout.queries);
    staged = floats(layout.staged);
    panels = floats(layout.panels);
    logits = floats(layout.logits);
    references = floats(layout.references);
    sums = reinterpret_cast<double*>(bytes + layout.sums);
    inverse_sums = floats(layout.inverse_sums);
    tile_references = floats(layout.tile_references);
    exps = floats(layout.exps);
  }

  float* TileReferences(size_t tile) const {
    return tile_references + tile * n_padded_rows;
  }
  // Where there is no room for all, those from the last room on take turns.
  float* TileExps(size_t tile) const {
    return exps + std::min(tile, n_exp_tiles - 1) * n_rows * kTileKeys;
  }
  bool KeepsExps(size_t tile) const {
    return n_exp_tiles == n_tiles || tile + 1 < n_exp_tiles;
  }

  size_t n_tiles;
  size_t n_exp_tiles;
  size_t n_rows;
  size_t n_padded_rows;
  float* queries;
  float* staged;
  float* panels;
  float* logits;
  float* references;
  double* sums;
  float* inverse_sums;
  float* tile_references;
  float* exps;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_LAYOUT_H_
