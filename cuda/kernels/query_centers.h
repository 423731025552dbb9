// Arguments and launch shapes of query_centers.cu.
#ifndef KVEVICT_CUDA_KERNELS_QUERY_CENTERS_H_
#define KVEVICT_CUDA_KERNELS_QUERY_CENTERS_H_

#include "params.h"

namespace kvevict::cuda {

struct CentersLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t centers;      // f32 [n_q_heads, 3, n_pairs], head stride below
  uint64_t rows;         // out: f32 [n_q_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in CentersParams::tokens
};
static_assert(sizeof(CentersLayer) == 40);

// The factor of a pair's center.
struct CentersTurn {
  float re;
  float im;
};

struct CentersParams {
  static constexpr uint32_t kMaxLayers = 44;
  static constexpr uint32_t kMaxPairs = 256;
  CacheRows keys;          // PairRows(); head_dim is not read
  CountTable tokens;       // per KV head
  uint64_t center_stride;  // elements
  uint32_t group;
  uint32_t n_sink;  // first tokens, which score 0
  uint32_t n_pairs;
  uint32_t is_interleaved;  // 2f and 2f + 1 are one, else f and f + n_pairs
  CentersTurn turns[kMaxPairs];
  CentersLayer layers[kMaxLayers];
};
static_assert(sizeof(CentersParams) <= 4096);

constexpr uint32_t kCentersThreads = 256;
// Rows and query heads that a thread of center_scores processes at a time.
constexpr uint32_t kCentersRows = 4;
constexpr uint32_t kCentersHeads = 4;

// Rows of a block of center_scores.
constexpr uint32_t CentersBlockRows(uint32_t lanes) {
  return kCentersThreads / lanes * kCentersRows;
}

// The number of contiguous elements: of all pairs, or of one side of each.
constexpr uint32_t CentersElements(uint32_t n_pairs, uint32_t is_interleaved) {
  return is_interleaved != 0 ? 2 * n_pairs : n_pairs;
}

// Rows of which only the pairs are read. They are wide if those elements fill
// whole loads of 16 bytes.
constexpr CacheRows PairRows(CacheRows rows, uint32_t n_pairs,
                             uint32_t is_interleaved) {
  const uint32_t n = CentersElements(n_pairs, is_interleaved);
  const uint32_t per_16 = PerLoad(static_cast<int>(rows.dtype));
  if (n % per_16 != 0) rows.wide = 0;
  rows.lanes = LanesOfRow(rows.wide != 0 ? n / per_16 : n_pairs);
  return rows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_QUERY_CENTERS_H_
