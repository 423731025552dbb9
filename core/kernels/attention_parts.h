// The layout of attention's scratch; the same for every CPU target.
#ifndef KVEVICT_CORE_KERNELS_ATTENTION_PARTS_H_
#define KVEVICT_CORE_KERNELS_ATTENTION_PARTS_H_

#include <cstddef>

#include "core/kernels/attention.h"

namespace kvevict {

// The columns of a matrix product come in two vectors with at most this many
// floats together.
inline constexpr size_t kPanel = 32;
// Rows that a block of a product may touch past the last one.
inline constexpr size_t kSpareRows = 8;

constexpr size_t InPanels(size_t n) {
  return (n + kPanel - 1) / kPanel * kPanel;
}

// Makes rows far enough apart that they do not evict each other from the L1
// cache.
constexpr size_t ApartInPanels(size_t n) { return InPanels(n) + kPanel / 2; }

struct AttentionParts {
  // For matrix products a head's [panel, k_dim, rows of a panel], else [rows,
  // padded k_dim]. Multiplied by scale and log2(e).
  float* queries;
  // Replaced by weights. For matrix products [slot, logit_stride] with adjacent
  // rows, else [rows, tile].
  float* logits;
  float* keys;     // [tile, key_stride], else copies of some rows
  float* values;   // likewise
  float* numbers;  // scales and minima of quantized rows: [2, heads, tile]
  // One element per row: the factor by which a tile scales earlier sums, and
  // the slots of the tile that the row sees.
  float* factors;
  float* begins;
  float* ends;
  size_t logit_stride;
  size_t key_stride;
  size_t value_stride;
  size_t n_floats = 0;

  // `memory` is nullptr if only n_floats is wanted.
  AttentionParts(const Attention& args, float* memory) {
    const bool dots = UsesDots(args.rows_per_head());
    const size_t n_rows = InPanels(args.n_rows());
    const size_t tile = kAttentionTile + kSpareRows;
    const size_t n_loaded = dots ? 4 : tile;
    const auto take = [&](size_t n) {
      float* const part = memory == nullptr ? nullptr : memory + n_floats;
      n_floats += InPanels(n);
      return part;
    };
    logit_stride = dots ? kAttentionTile : n_rows + kSpareRows;
    key_stride = ApartInPanels(args.k_dim);
    value_stride = ApartInPanels(args.v_dim);
    queries = take(n_rows * InPanels(args.k_dim));
    logits = take(dots ? n_rows * kAttentionTile : tile * logit_stride);
    keys = take(n_loaded * key_stride);
    values = take(n_loaded * value_stride);
    numbers = take(dots ? 2 * size_t{args.n_heads} * kAttentionTile : 0);
    factors = take(n_rows);
    begins = take(n_rows);
    ends = take(n_rows);
  }
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ATTENTION_PARTS_H_
