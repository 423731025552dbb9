// The best that this machine can do, measured in this process.
#ifndef KVEVICT_TESTS_BENCH_LIMITS_H_
#define KVEVICT_TESTS_BENCH_LIMITS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/simd.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/samples.h"

namespace kvevict::bench {

class Limits {
 public:
  // Each call measures anew, keeps the sample for the report and returns it, per
  // thread and second of CPU time. This one uses f32, the widest vector and 12
  // accumulators.
  double FmaFlops(SimdTarget simd, uint32_t n_threads);
  // Exponentials by the kernels' own 2^x, in L1.
  double Exponentials(SimdTarget simd, uint32_t n_threads);
  double MemcpyBytes(uint32_t n_threads);  // payload, in memory
  double ReadBytes(uint32_t n_threads);    // in memory

  // Empties the caches.
  void EvictCaches();

  using Key = std::pair<std::string, uint32_t>;  // name, threads
  const std::map<Key, Samples>& samples() const { return samples_; }

 private:
  double Note(const std::string& name, uint32_t n_threads, double value);

  std::map<Key, Samples> samples_;
  HugeBuffer<uint8_t> memory_{size_t{128} << 20};
};

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_LIMITS_H_
