// A product and a sum that are rounded only once.
#ifndef KVEVICT_CORE_FUSED_H_
#define KVEVICT_CORE_FUSED_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvevict {

// a * b + c as C's fmaf() should compute it; mingw's is sometimes off by one
// unit. The double sum is made odd in its last place if it is inexact. Then it
// lies exactly between two floats only if the true sum does, and rounds to the
// right one.
inline float FusedMulAdd(float a, float b, float c) {
  const double product = double{a} * b;  // exact
  double sum = product + c;
  const double back = sum - product;
  const double lost = (product - (sum - back)) + (c - back);
  if (lost != 0 && std::isfinite(sum) &&
      std::bit_cast<uint64_t>(sum) % 2 == 0) {
    constexpr double kFar = std::numeric_limits<double>::infinity();
    sum = std::nextafter(sum, lost > 0 ? kFar : -kFar);
  }
  return static_cast<float>(sum);
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_FUSED_H_
