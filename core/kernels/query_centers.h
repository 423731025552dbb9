// One KV head's keys against where the queries that read them lie before RoPE.
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
  uint32_t n_sink = 0;  // first ones that are not scored, and get 0
  uint32_t group = 0;   // query heads that read this KV head
  // Pairs of elements; those of a row beyond them are not read.
  uint32_t n_pairs = 0;
  bool is_interleaved = false;  // 2f and 2f + 1 are one, else f and f + n_pairs
  const Complex* turns = nullptr;  // [n_pairs], see Rope::TurnsAt()
  // [group, 3, n_pairs]: of a pair the mean (real, imaginary) and the mean length;
  // heads so many elements apart.
  const float* centers = nullptr;
  uint64_t center_stride = 0;
  float* out = nullptr;  // [group, n_tokens], heads so many elements apart
  uint64_t out_stride = 0;
  void* scratch = nullptr;  // QueryCentersScratchBytes(), 64-byte aligned
};

CheckedSize QueryCentersScratchBytes(uint32_t n_pairs, uint32_t group);

// out = scores of the keys by every query head, see kvevict_score(), less the head's
// mean and divided by its standard deviation.
//
// Centers are turned in double, the rest is f32. Deterministic on one CPU target;
// targets differ by rounding. Reads every key row once, up to four query heads; once
// more, from a cache, for every four more. A score that is not finite becomes NaN and
// is left out of mean and deviation.
void ScoreByCenters(SimdTarget simd, const QueryCenters& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_QUERY_CENTERS_H_
