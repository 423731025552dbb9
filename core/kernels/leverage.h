// Statistical leverage of one KV head's keys before RoPE.
#ifndef KVEVICT_CORE_KERNELS_LEVERAGE_H_
#define KVEVICT_CORE_KERNELS_LEVERAGE_H_

#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// The most elements of a key, on every backend.
inline constexpr uint32_t kMaxLeverageDim = 256;

// What is added to the diagonal of the Gram matrix: the first that lets it be
// factored.
inline constexpr double kLeverageRidges[] = {0.01, 0.1, 1.0, 10.0, 100.0};

struct Leverage {
  RowSource keys;
  uint32_t first_row = 0;  // of n_rows, which are compared with each other
  uint32_t n_rows = 0;
  uint32_t head_dim = 0;               // up to kMaxLeverageDim
  const int32_t* positions = nullptr;  // [n_rows], as RoPE saw them
  const uint64_t* turns = nullptr;     // [n_pairs]: TurnsOf() each frequency
  uint32_t n_pairs = 0;
  // Pair f is elements f and f + n_pairs, or 2 f and 2 f + 1.
  bool is_interleaved = false;
  float* out = nullptr;     // [n_rows]
  void* scratch = nullptr;  // LeverageScratchBytes(), 64-byte aligned
};

CheckedSize LeverageScratchBytes(uint32_t head_dim);

// out[j] = x_j' (X'X + ridge I)^-1 x_j, where x_j is key j, turned back to
// before RoPE, minus the mean of all. Keys are turned back in f32; the rest is
// double, and y of |y|^2 = out is rounded to f32. Every target with a fused
// multiply-add gives the same bits. NaN or infinity in a key makes all of out
// NaN. Reads every key twice.
void ComputeLeverage(SimdTarget simd, const Leverage& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_LEVERAGE_H_
