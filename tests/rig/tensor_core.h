// Models a tensor core's mma.m16n8k16 with 16-bit elements and sums in f32: the
// arithmetic alone.
//
// NVIDIA says little about it. These were measured (Khattak and Mikaitis, "Accurate
// Models of NVIDIA Tensor Cores", arXiv:2512.07004, 2025; Fasi et al., "Numerical
// behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021): products are exact.
// Some of them and the sum so far are added at once. All are aligned to the largest
// exponent among them, where a product's is the sum of its factors', and cut a few
// bits behind the last of f32. The sum is cut to f32, too.
#ifndef KVEVICT_TESTS_RIG_TENSOR_CORE_H_
#define KVEVICT_TESTS_RIG_TENSOR_CORE_H_

#include <cstdint>

namespace kvevict::rig {

struct TensorCore {
  const char* name;
  uint32_t n_together;  // products that are added at once
  int n_extra_bits;     // after alignment, behind the 23 of f32
  bool truncates;       // otherwise sums are exact and rounded to nearest

  // The error of a dot product of n elements in 2^-24 of the largest magnitude
  // among its products and partial sums. Of n_together + 1 addends the one with
  // the largest exponent loses nothing, each other less than a unit of the
  // alignment, 2^-23 / 2^n_extra_bits of the largest. Then the sum loses less than
  // 2^-23 of itself.
  constexpr double DotError(uint32_t n) const {
    const double of_addends = 2.0 * n_together / (1 << n_extra_bits);
    const double of_one_sum = truncates ? of_addends + 2.0 : 1.0;
    return of_one_sum * ((n + n_together - 1) / n_together);
  }
};

inline constexpr TensorCore kToNearest = {"to nearest", 16, 0, false};
inline constexpr TensorCore kAmpere = {"as sm_80 to 89", 8, 1, true};
inline constexpr TensorCore kHopper = {"as sm_90 and later", 16, 2, true};
inline constexpr TensorCore kTensorCores[] = {kToNearest, kAmpere, kHopper};

// Operands of one mma as numbers.
struct Matrices {
  float a[16][16];
  float b_columns[8][16];
  float c[16][8];
};

// c += a b. least_exponent is that of the elements' type, -14 for f16, -126 for bf16.
void MultiplyAccumulate(const TensorCore& core, int least_exponent,
                        Matrices& matrices);

}  // namespace kvevict::rig

#endif  // KVEVICT_TESTS_RIG_TENSOR_CORE_H_
