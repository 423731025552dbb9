// The layout of window attention's scratch; the same for every CPU target.
#ifndef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_LAYOUT_H_
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/window_attention.h"

namespace kvevict {

// Keys per tile. A tile of f32 keys with 128 elements fills an L1 cache of 32
// KiB; a panel of it stays there while all queries pass.
inline constexpr size_t kTileKeys = 64;

// The most query rows that a target's matrix product takes at once.
inline constexpr size_t kMaxRowsPerBlock = 8;

// Rows of a window whose weighted sum is computed before it is added to the
// rest, so that rounding errors do not grow with the window.
inline constexpr size_t kRowsPerSum = 64;

// Query rows that are multiplied with the keys together: some rows of the
// window, for some heads of a group.
struct RowBatch {
  uint32_t head = 0;
  uint32_t n_heads = 0;
  uint32_t row = 0;
  uint32_t n_rows = 0;

  size_t size() const { return size_t{n_heads} * n_rows; }
};

// The rows of a group in batches: heads with all of the window's rows, as many
// as fit in kBytes. If one head has too many rows, a batch has some rows of one
// head, and all but the last batch have whole sums. The same whatever the
// scratch.
class RowBatches {
 public:
  // The keys are packed again for each batch, but a batch stays in the
  // second-level cache for every panel of keys. With 128 heads of 576 elements
  // and 32 rows this takes 0.88 times the time of one batch; with 1 MiB 0.89,
  // with 512 KiB 0.97.
  static constexpr size_t kBytes = size_t{2} << 20;

  RowBatches(uint32_t window, uint32_t group, uint32_t head_dim,
             uint32_t logit_heads)
      : window_(window), group_(group) {
    // A row's queries, and its logits and exponentials of one tile.
    const size_t row_bytes =
        size_t{logit_heads} * (head_dim + 2 * kTileKeys) * sizeof(float);
    const size_t unit = logit_heads == 1 ? kRowsPerSum : kMaxRowsPerBlock;
    const size_t most = std::max(unit, kBytes / row_bytes);
    if (window <= most) {
      n_heads_ = Even(group, most / window, 1);
      n_rows_ = window;
    } else {
      n_heads_ = 1;
      n_rows_ = Even(window, most / unit * unit, unit);
    }
  }

  // The first batch, which is the largest.
  RowBatch First() const { return {0, n_heads_, 0, n_rows_}; }
  // Returns head == group after the last batch.
  RowBatch After(RowBatch batch) const {
    batch.row += batch.n_rows;
    if (batch.row == window_) {
      batch.row = 0;
      batch.head += batch.n_heads;
    }
    batch.n_heads = std::min(n_heads_, group_ - batch.head);
    batch.n_rows = std::min(n_rows_, window_ - batch.row);
    return batch;
  }
  bool PartWindows() const { return n_rows_ < window_; }
  // The most rows of a batch with a single head, whatever the window.
  static size_t MostRows(uint32_t head_dim) {
    return std::max(kRowsPerSum,
                    kBytes / ((head_dim + 2 * kTileKeys) * sizeof(float)));
  }

 private:
  // The size of equal parts of n, at most `most`, in multiples of `unit`.
  static uint32_t Even(size_t n, size_t most, size_t unit) {
    const size_t n_parts = (n + most - 1) / most;
    const size_t size = (n + n_parts - 1) / n_parts;
    return static_cast<uint32_t>((size + unit - 1) / unit * unit);
  }

  uint32_t window_;
  uint32_t group_;
  uint32_t n_heads_;
  uint32_t n_rows_;
};

// The floats from one staged key row to the next: padded to whole vectors, and
// 64 bytes more so that rows of 4 KiB do not share a cache set.
constexpr size_t StagedRowStride(size_t head_dim) {
  return (head_dim + 15) / 16 * 16 + 16;
}

// Offsets in bytes, all multiples of 64. A "row" is a query. n_rows are those
// of the largest batch.
class WindowAttentionLayout {
 public:
  // A layout with room for the exponentials of most_exp_tiles tiles, or of all.
  WindowAttentionLayout(uint32_t n_tokens, uint32_t window, uint32_t group,
                        uint32_t head_dim, uint32_t logit_heads,
                        size_t most_exp_tiles)
      : batches(window, group, head_dim, logit_heads),
        n_tiles((size_t{n_tokens} + kTileKeys - 1) / kTileKeys),
        n_exp_tiles(std::min(n_tiles, most_exp_tiles)),
        n_rows(batches.First().size()),
        // Enough for the last block, whatever its size, and for whole vectors.
        n_padded_rows((n_rows + kMaxRowsPerBlock - 1 + 15) / 16 * 16) {
    const CheckedSize padded = n_padded_rows;
    const CheckedSize padded_queries =
        (CheckedSize(n_rows) * CheckedSize(logit_heads) +
         CheckedSize(kMaxRowsPerBlock - 1))
            .AlignUp(16);
    const CheckedSize f32 = sizeof(float);
    const CheckedSize padded_dim = CheckedSize(head_dim).AlignUp(16);
    queries = Add(padded_queries * padded_dim * f32);
    staged = Add(CheckedSize(16 * StagedRowStride(head_dim)) * f32);
    panels = Add(padded_dim * CheckedSize(kTileKeys) * f32);
    logits = Add(padded_queries * CheckedSize(kTileKeys) * f32);
    references = Add(padded * f32);
    last_references = Add(padded * f32);
    sums = Add(padded * CheckedSize(sizeof(double)));
    inverse_sums = Add(padded * f32);
    head_sums = Add(CheckedSize(batches.PartWindows()
                                    ? n_tiles
                                    : size_t{batches.First().n_heads}) *
                    CheckedSize(kTileKeys) * f32);
    tile_references = Add(CheckedSize(n_exp_tiles) * padded * f32);
    exps = Add(CheckedSize(n_exp_tiles) * CheckedSize(n_rows) *
               CheckedSize(kTileKeys) * f32);
  }

  // A layout with as many tiles as fit in the scratch, which has room for one.
  static WindowAttentionLayout ThatFits(uint32_t n_tokens, uint32_t window,
                                        uint32_t group, uint32_t head_dim,
                                        uint32_t logit_heads,
                                        size_t scratch_bytes) {
    const WindowAttentionLayout least(n_tokens, window, group, head_dim,
                                      logit_heads, 1);
    const size_t tile_bytes =
        (least.n_padded_rows + least.n_rows * kTileKeys) * sizeof(float);
    return {n_tokens,    window,
            group,       head_dim,
            logit_heads, 1 + (scratch_bytes - least.bytes()) / tile_bytes};
  }

  // SIZE_MAX if the sizes do not fit in size_t.
  size_t bytes() const { return end_.ok() ? end_.value() : SIZE_MAX; }

  RowBatches batches;
  size_t n_tiles;
  size_t n_exp_tiles;
  size_t n_rows;
  size_t n_padded_rows;

  // f32 [block, head_dim, rows per block], scaled, for all heads of a row's
  // logits; few queries are [rows, padded head_dim]
  size_t queries = 0;
  size_t staged = 0;  // f32 [16, StagedRowStride()] keys on their way to panels
  // f32 [panel, padded head_dim, keys per panel] of one tile
  size_t panels = 0;
  size_t logits = 0;      // f32 [as queries, kTileKeys] of one tile, in base 2
  size_t references = 0;  // f32 [n_padded_rows]: base of exponents
  size_t last_references = 0;  // f32 [n_padded_rows]: after the last tile
  size_t sums = 0;             // f64 [n_padded_rows]
  size_t inverse_sums = 0;     // f32 [n_padded_rows]
  // Sums of heads before they are reduced: f32 [n_heads, kTileKeys] of one
  // tile, or [n_tiles, kTileKeys] of the head whose window is divided.
  size_t head_sums = 0;
  size_t tile_references = 0;  // f32 [n_exp_tiles, n_padded_rows]
  size_t exps = 0;             // f32 [n_exp_tiles, n_rows, kTileKeys]

 private:
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
      : batches(layout.batches),
        n_tiles(layout.n_tiles),
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
    last_references = floats(layout.last_references);
    sums = reinterpret_cast<double*>(bytes + layout.sums);
    inverse_sums = floats(layout.inverse_sums);
    head_sums = floats(layout.head_sums);
    tile_references = floats(layout.tile_references);
    exps = floats(layout.exps);
  }

  // If there is no room for all tiles, the last ones share the last room.
  float* TileReferences(size_t tile) const {
    return tile_references + std::min(tile, n_exp_tiles - 1) * n_padded_rows;
  }
  float* TileExps(size_t tile) const {
    return exps + std::min(tile, n_exp_tiles - 1) * n_rows * kTileKeys;
  }
  // The number of first tiles, of n, that have room of their own.
  size_t n_kept_tiles(size_t n) const {
    return n <= n_exp_tiles ? n : n_exp_tiles - 1;
  }
  // f32 [n_heads of a batch, kTileKeys]
  float* HeadSums(size_t tile) const {
    return head_sums + (batches.PartWindows() ? tile * kTileKeys : 0);
  }

  RowBatches batches;
  size_t n_tiles;
  size_t n_exp_tiles;
  size_t n_rows;
  size_t n_padded_rows;
  float* queries;
  float* staged;
  float* panels;
  float* logits;
  float* references;
  float* last_references;
  double* sums;
  float* inverse_sums;
  float* head_sums;
  float* tile_references;
  float* exps;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_LAYOUT_H_
