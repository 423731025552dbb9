// Fits the values of the rows that stay to what queries read before.
#ifndef KVEVICT_CORE_KERNELS_FIT_VALUES_H_
#define KVEVICT_CORE_KERNELS_FIT_VALUES_H_

#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/attention.h"
#include "core/simd.h"

namespace kvevict {

// The most queries of a KV head, those of all its query heads together.
inline constexpr uint32_t kMostFitQueries = 4096;

struct FitValues {
  // All queries and all n_tokens rows of one KV head. The values of kept rows
  // are written. Every query sees every row: non_causal is set.
  Attention rows;
  const float* sinks = nullptr;   // [group] natural logits; nullptr: none
  const int32_t* keep = nullptr;  // strictly ascending
  uint32_t n_keep = 0;
  double ridge = 0.0;       // in units of the mean diagonal
  void* scratch = nullptr;  // FitScratchBytes(), at a cache line, any content
};

// The scratch for up to n_tokens rows. Only the sizes in `rows` are read.
CheckedSize FitScratchBytes(const Attention& rows, uint32_t n_tokens);

// Replaces the kept values V by the C that minimise |X C - Y|^2 + ridge * (mean
//   diagonal of X'X) * |C - V|^2, where Y is what the queries read from all
//   rows, and X their weights of the kept rows alone. With fewer queries than
//   kept rows the equal system X X' is solved. Weights are f32, the rest is
//   double. An element stays as it was if its dtype cannot hold the element of
//   C; if weights are not finite, all do. Deterministic on one CPU target;
//   targets differ by rounding.
void FitKeptValues(SimdTarget simd, const FitValues& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_FIT_VALUES_H_
