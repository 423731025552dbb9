#include "tests/cuda/gates/prediction.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/window_attention.h"

namespace kvevict::cuda {
namespace {

constexpr const Flagship& f = kFlagship;
constexpr double kLists = static_cast<double>(f.n_layers) * f.n_kv_heads;
constexpr double kRows = static_cast<double>(f.group) * f.window;
constexpr double kPairs = kLists * kRows * f.n_tokens;
constexpr double kRowBytes = static_cast<double>(f.head_dim) * f.element_bytes;

// A GPU does 10^9 clocks, bytes and so on per second times its rate.
double Milliseconds(double n, double giga_per_second) {
  return n / giga_per_second / 1e6;
}

}  // namespace

double PassTime::Longest() const {
  return std::max({issue, tensor, exponentials, memory});
}
double PassTime::Sum() const { return issue + tensor + exponentials + memory; }

PassTime PredictPass(const Gpu& gpu, const ScorerSlots& slots,
                     uint32_t blocks_per_multiprocessor) {
  const uint32_t tile_keys =
      TileKeys(true, f.head_dim, static_cast<uint32_t>(gpu.sm));
  const WindowAttentionShape shape = ShapeWindowAttention(
      true, kBF16, f.head_dim, f.window, f.group, tile_keys);
  const double n_warps = shape.row_warps * shape.key_groups;
  const double chunks_of_warp = tile_keys / 16.0 / shape.key_groups;
  const double n_tiles = kLists * shape.n_blocks * f.n_tokens / tile_keys;
  const double n_slots = n_tiles * n_warps *
                         (static_cast<double>(slots.of_tile) +
                          chunks_of_warp * static_cast<double>(slots.of_chunk));
  const double n_exponentials =
      n_tiles * n_warps * chunks_of_warp *
      static_cast<double>(slots.exponentials_of_chunk) * 32;

  const double n_blocks = kLists * SplitKeys(f.n_tokens).n_splits;
  const double n_at_work =
      static_cast<double>(gpu.n_multiprocessors) * blocks_per_multiprocessor;
  const double tail = std::ceil(n_blocks / n_at_work) / (n_blocks / n_at_work);

  const double clocks = gpu.n_multiprocessors * gpu.ghz;
  return {tail * Milliseconds(n_slots, clocks * kIssuesPerClock),
          tail * Milliseconds(2 * kPairs * f.head_dim,
                              gpu.tensor_tflops * 1000 * gpu.mma_sync_share),
          tail * Milliseconds(n_exponentials, clocks * kSpecialPerClock),
          Milliseconds(kLists * f.n_tokens * kRowBytes, gpu.bytes_per_ns)};
}

double PredictCompaction(const Gpu& gpu) {
  constexpr double kBytes = kLists * f.n_keep * kRowBytes;
  return Milliseconds(2 * 2 * kBytes, gpu.bytes_per_ns);  // K and V, in and out
}

}  // namespace kvevict::cuda
