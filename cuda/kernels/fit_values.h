// Arguments and launch shapes of fit_values.cu and fit_biases.cu.
#ifndef KVEVICT_CUDA_KERNELS_FIT_VALUES_H_
#define KVEVICT_CUDA_KERNELS_FIT_VALUES_H_

#include "params.h"

namespace kvevict::cuda {

// One layer. n are the queries of a KV head, query i of query head g of its
// group at g * n_queries + i; t its rows that stay. The system of a head has
// min(n, t) unknowns; n_unknowns is the most of any head.
struct FitParams {
  CacheRows keys;
  CacheRows values;      // those of kept rows are written
  uint64_t key_base;     // slot 0, head 0
  uint64_t value_base;   // likewise
  uint64_t block_table;  // i32; paged rows only
  RowLayout biases;      // f32; those of kept rows may be written
  uint64_t bias_base;    // likewise; 0: there are none
  uint64_t keep;         // i32 [n_lists, keep_stride]
  CountTable tokens;     // per KV head
  CountTable counts;     // per list
  uint64_t sinks;        // f32 [n_kv_heads * group] natural logits; 0: none
  // The place of the queries, as QueryRows in core/ops/score.h has it.
  uint64_t given;
  int64_t given_row_stride;
  int64_t given_head_stride;
  int64_t given_element_stride;
  uint32_t given_dtype;
  uint32_t first_row;
  uint32_t ring_rows;
  uint32_t k_dim;
  // Scratch.
  uint64_t queries;  // f32 [n_kv_heads, n, k_dim]
  uint64_t reads;    // f32 [n_kv_heads, n, v_dim]: of all rows
  uint64_t
      references;  // f32 [n_kv_heads, n]: weight = inverse * 2^(x - reference)
  uint64_t inverses;
  uint64_t residuals;  // f64 [n_kv_heads, n, v_dim], if n >= t
  // f64 [n_kv_heads, n_unknowns, n_unknowns + v_dim]: the matrix on and above
  // its diagonal, and behind it the right-hand side.
  uint64_t matrix;
  uint64_t weights;  // f32 [n_kv_heads, kFitRows, n_unknowns]: rows of X or X'
  uint64_t state;    // u32 [n_kv_heads]: FitState
  // While biases are fitted; `held` is 0 later. v_dim is 1 then, and the
  // residuals are the masses.
  uint64_t gram;  // f64 [n_kv_heads, n_unknowns, n_unknowns + 1], as `matrix`
  uint64_t
      masses;  // f64 [n_kv_heads, n]: the weight of all rows, less the kept
               // ones'; 0: biases are not fitted
  uint64_t
      point;  // f64 [n_kv_heads, n_unknowns]: see core/kernels/fit_biases-inl.h
  uint64_t wanted;  // f64 [n_kv_heads, n_keep]
  uint64_t next_wanted;
  uint64_t held;
  uint64_t bias_ridges;  // f64 [n_kv_heads]
  double ridge;
  uint32_t n_tokens;  // of the longest head
  uint32_t n_keep;    // of the longest list
  uint32_t n_lists;   // 1 or n_kv_heads
  uint32_t keep_stride;
  uint32_t group;
  uint32_t n_queries;
  uint32_t n_unknowns;
  uint32_t v_dim;
  uint32_t first;       // of the launch: the first row of `weights`, or unknown
  uint32_t only_slots;  // fit_weights: only of heads with fewer queries
  float query_scale;
  float cap;  // 0: logits are not capped
};
static_assert(sizeof(FitParams) <= 4096);

// Once a head's fit is over, later launches leave the head as it is.
enum FitState : uint32_t { kFitRuns, kFitFailed, kFitSettled };

constexpr uint32_t kFitThreads = 256;
constexpr uint32_t kFitTile = 32;  // elements of a side of a block's tile
constexpr uint32_t kFitRows = 256;
constexpr uint32_t kFitWarps = kFitThreads / 32;

// fit_sums, fit_update: tiles of a matrix and its right-hand side.
constexpr uint32_t FitTiles(uint32_t n_unknowns, uint32_t v_dim) {
  const uint32_t n = (n_unknowns + kFitTile - 1) / kFitTile;
  return n * (n + (v_dim + kFitTile - 1) / kFitTile);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_FIT_VALUES_H_
