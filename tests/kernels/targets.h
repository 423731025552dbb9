// Runs a test on every Highway target of this build that the CPU has.
#ifndef KVEVICT_TESTS_KERNELS_TARGETS_H_
#define KVEVICT_TESTS_KERNELS_TARGETS_H_

#include <cstdint>

// Not highway.h, which must come after foreach_target.h.
#include "hwy/targets.h"

namespace kvevict {

// Calls test(name of the target) with the dispatch bound to one target after another.
template <class Test>
void ForEachTarget(const Test& test) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    test(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_TARGETS_H_
