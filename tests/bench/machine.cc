#include "tests/bench/machine.h"

#include <fstream>
#include <thread>

#include "kvevict/experimental.h"

namespace kvevict::bench {
namespace {

// The value of a line "key : value" of /proc/cpuinfo, "" if there is none.
std::string CpuInfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "";
}

}  // namespace

Machine DescribeMachine(const std::string& simd) {
  Machine machine;
  machine.cpu = CpuInfo("model name");
  machine.n_cpus = std::thread::hardware_concurrency();
  machine.simd = simd;
  for (uint32_t i = 0; kvevict_simd_target_at(i) != nullptr; ++i) {
    machine.targets.push_back(kvevict_simd_target_at(i));
  }
  machine.has_bf16_dot =
      (" " + CpuInfo("flags") + " ").find(" avx512_bf16 ") != std::string::npos;
  return machine;
}

}  // namespace kvevict::bench
