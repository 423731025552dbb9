// Scores one KV head's keys by the centers of the queries that read them,
// before RoPE.
#ifndef KVEVICT_CORE_KERNELS_QUERY_CENTERS_H_
#define KVEVICT_CORE_KERNELS_QUERY_CENTERS_H_

#include <cstdint>

#include "core/checked_math.h"
#include "core/complex.h"
#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct QueryCenters {
  RowSource keys;  // n_tokens rows
  uint32_t n_tokens = 0;
  uint32_t n_sink = 0;  // first tokens, which are not scored and get 0
  uint32_t group = 0;   // query heads that read this KV head
  // Pairs of elements. Elements of a row beyond them are not read.
  uint32_t n_pairs = 0;
  // pair f is 2f and 2f + 1, else f and f + n_pairs
  bool is_interleaved = false;
  const Complex* turns = nullptr;  // [n_pairs], see Rope::TurnsAt()
  // [group, 3, n_pairs]: a pair's mean (real, imaginary) and mean length. Heads
  // are center_stride elements apart.
  const float* centers = nullptr;
  uint64_t center_stride = 0;
  float* out = nullptr;  // [group, n_tokens], heads out_stride elements apart
  uint64_t out_stride = 0;
  void* scratch = nullptr;  // QueryCentersScratchBytes(), 64-byte aligned
};

CheckedSize QueryCentersScratchBytes(uint32_t n_pairs, uint32_t group);

// out = scores of the keys for every query head, see kvevict_score(), minus the
// head's mean and divided by its standard deviation.
//
// Centers are rotated in double; the rest is f32. Deterministic on one CPU
// target; targets differ by rounding. Reads every key row once for up to four
// query heads, and once more, from a cache, for every four more. A score that
// is not finite becomes NaN and is left out of mean and deviation.
void ScoreByCenters(SimdTarget simd, const QueryCenters& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_QUERY_CENTERS_H_
