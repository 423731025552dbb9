// The layout of matrices of double in normal equations.
#ifndef KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_H_
#define KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_H_

#include <cstddef>

namespace kvevict {

// The rows that are multiplied at once, and what rows of matrices are padded
// to: two vectors of up to eight.
inline constexpr size_t kTileRows = 32;
inline constexpr size_t kMatrixPad = 16;
inline constexpr size_t kMatrixRows = 4;

constexpr size_t PaddedMatrix(size_t n) {
  return (n + kMatrixPad - 1) / kMatrixPad * kMatrixPad;
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_H_
