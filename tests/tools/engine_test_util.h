// Helpers that the tests of tools/engine share.
#ifndef KVEVICT_TESTS_TOOLS_ENGINE_TEST_UTIL_H_
#define KVEVICT_TESTS_TOOLS_ENGINE_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "hwy/targets.h"

namespace kvevict::tools {

// Unit roundoff of f32.
inline constexpr double kRoundoff = 0x1p-24;

// Gaussian numbers; the same for the same seed and machine.
inline std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gauss;
  std::vector<float> values(n);
  for (float& value : values) value = gauss(random);
  return values;
}

// Calls test(name) with vector code for each target of this CPU in turn.
template <typename Test>
void ForEachTarget(const Test& test) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    test(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_ENGINE_TEST_UTIL_H_
