// Launches of a test under every policy. Errors are failures.
#ifndef KVEVICT_TESTS_RIG_SIMT_RUN_H_
#define KVEVICT_TESTS_RIG_SIMT_RUN_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/rig/simt/simt.h"

namespace kvevict::simt {

template <class T>
uint64_t AddressOf(const std::vector<T>& v) {
  return reinterpret_cast<uintptr_t>(v.data());
}
inline uint64_t AddressOf(const void* p) {
  return reinterpret_cast<uintptr_t>(p);
}

// The seed for the order of threads and blocks; KVEVICT_TEST_SEED sets it.
inline uint64_t Seed() {
  const char* const text = std::getenv("KVEVICT_TEST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// Calls launch(options), which returns the error of a Launch, with every policy.
// Compare results inside `launch`, or after it if the last run tells enough.
// run tells enough, behind.
template <class F>
void RunAll(F launch) {
  for (const Policy policy : kPolicies) {
    const std::string error = launch(Options{.policy = policy, .seed = Seed()});
    if (error.empty()) continue;
    std::fprintf(stderr, "policy %d, seed %llu: %s\n", static_cast<int>(policy),
                 static_cast<unsigned long long>(Seed()), error.c_str());
    std::exit(1);
  }
}

}  // namespace kvevict::simt

#endif  // KVEVICT_TESTS_RIG_SIMT_RUN_H_
