// Runs a test on every SIMD target of this build that the CPU has, or only on those
// that KVEVICT_TEST_TARGETS names, as "SVE2_128 SVE": emulated CPUs are slow.
#ifndef KVEVICT_TESTS_KERNELS_TARGETS_H_
#define KVEVICT_TESTS_KERNELS_TARGETS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/simd.h"

namespace kvevict {

// Calls test(target), best first.
template <class Test>
void ForEachTarget(const Test& test) {
  const char* const text = std::getenv("KVEVICT_TEST_TARGETS");
  const std::string wanted =
      text == nullptr ? "" : std::string(" ") + text + " ";
  bool has_run = false;
  for (uint32_t i = 0; SimdTargetAt(i).name != nullptr; ++i) {
    const std::string name = std::string(" ") + SimdTargetAt(i).name + " ";
    if (!wanted.empty() && wanted.find(name) == wanted.npos) continue;
    test(SimdTargetAt(i));
    has_run = true;
  }
  if (has_run) return;
  std::fprintf(stderr, "KVEVICT_TEST_TARGETS: no \"%s\" here\n", text);
  std::abort();
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_TARGETS_H_
