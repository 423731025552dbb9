// The machine that the figures come from.
#ifndef KVEVICT_TESTS_BENCH_MACHINE_H_
#define KVEVICT_TESTS_BENCH_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvevict::bench {

struct Machine {
  std::string cpu;
  uint32_t n_cpus;
  std::string simd;                  // the target in use
  std::vector<std::string> targets;  // SIMD, best first
  bool has_bf16_dot;                 // of the CPU; no kernel uses it so far
};

Machine DescribeMachine(const std::string& simd);

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_MACHINE_H_
