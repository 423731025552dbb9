// Runs a test on every SIMD target of this build that the CPU has.
#ifndef KVEVICT_TESTS_KERNELS_TARGETS_H_
#define KVEVICT_TESTS_KERNELS_TARGETS_H_

#include <cstdint>

#include "core/simd.h"

namespace kvevict {

// Calls test(target), best first.
template <class Test>
void ForEachTarget(const Test& test) {
  for (uint32_t i = 0; SimdTargetAt(i).name != nullptr; ++i) {
    test(SimdTargetAt(i));
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_TARGETS_H_
