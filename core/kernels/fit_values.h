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

// Biases change by this much at most.
inline constexpr double kMostBiasChange = 3.0;
// Newton steps after the first that find them, at most. A few are enough unless
// the ridge is tiny.
inline constexpr uint32_t kMostBiasSteps = 50;

struct FitValues {
  // All queries and all n_tokens rows of one KV head. The values of kept rows
  // are written. Every query sees every row: non_causal is set.
  Attention rows;
  const float* sinks = nullptr;   // [group] natural logits; nullptr: none
  const int32_t* keep = nullptr;  // strictly ascending
  uint32_t n_keep = 0;
  double ridge = 0.0;  // in units of the mean diagonal
  // Biases of kept rows are fitted first; rows.biases is there and is written.
  bool fits_biases = false;
  void* scratch = nullptr;  // FitScratchBytes(), at a cache line, any content
};

// The scratch for up to n_tokens rows. Only the sizes in `rows` are read.
CheckedSize FitScratchBytes(const Attention& rows, uint32_t n_tokens,
                            bool fits_biases);

// Replaces the kept values V by the C that minimise
//   |X C - Y|^2 + ridge * (mean diagonal of X'X) * |C - V|^2,
// where Y is what the queries read from all rows, and X their weights of the
// kept rows alone. With fewer queries than kept rows the equal system X X' is
// solved. Weights are f32, the rest is double. An element stays as it was if
// its dtype cannot hold the element of C; if weights are not finite, all do.
// Deterministic on one CPU target; targets differ by rounding.
//
// fits_biases first adds ln B to the biases of the kept rows. B lies in
// [e^-3, e^3], 3 being kMostBiasChange, and minimises
//   |P B - T|^2 + ridge * (mean diagonal of P'P) * |B - 1|^2,
// where P are the queries' weights of the kept rows in the softmax over all
// rows, and T the weights of all rows together, 1 without a sink. X then has
// the new biases. Biases stay as they were if weights are not finite or
// kMostBiasSteps do not find B.
void FitKeptValues(SimdTarget simd, const FitValues& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_FIT_VALUES_H_
