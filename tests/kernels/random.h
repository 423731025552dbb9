// Numbers for tests, from a seed that is printed.
#ifndef KVEVICT_TESTS_KERNELS_RANDOM_H_
#define KVEVICT_TESTS_KERNELS_RANDOM_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvevict {

// KVEVICT_TEST_SEED or 1, printed with the name of the test.
inline uint64_t TestSeed(const char* test) {
  const char* text = std::getenv("KVEVICT_TEST_SEED");
  const uint64_t seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 0);
  std::fprintf(stderr, "%s: KVEVICT_TEST_SEED=%llu\n", test,
               static_cast<unsigned long long>(seed));
  return seed;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t Next() { return engine_(); }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }
  float Gaussian() { return gaussian_(engine_); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> gaussian_;
};

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_RANDOM_H_
