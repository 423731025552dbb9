// How far a score of the GPU may be from the CPU's.
#ifndef KVEVICT_TESTS_GPU_SCORE_ERROR_H_
#define KVEVICT_TESTS_GPU_SCORE_ERROR_H_

#include <cmath>

#include "kvevict/kvevict.h"

namespace kvevict::gpu {

// The error as a share of what is allowed: at most 1. The CPU itself is within
// 2e-5. The GPU adds a few units in the last place for 2^x and log2, and sums in
// another order. Differences and cosines may be next to 0.
inline double ScoreError(const oracle_policy& policy, float got,
                         float expected) {
  constexpr double kRelative = 1e-4;
  constexpr double kOfDeviation = 1e-4;
  constexpr double kOfCosine = 1e-5;
  constexpr double kOfOthers = 1e-30;
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return 0.0;
  const double absolute =
      policy.kind == ORACLE_TRIATTENTION || policy.standardize ||
              policy.leverage > 0.0
          ? kOfDeviation
      : policy.kind == ORACLE_KEYDIFF || policy.redundancy > 0.0 ? kOfCosine
                                                                 : kOfOthers;
  return std::abs(double{got} - expected) /
         (kRelative * std::abs(double{expected}) + absolute);
}

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_SCORE_ERROR_H_
