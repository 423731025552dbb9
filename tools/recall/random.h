// Random numbers for the recall model and its workload.
#ifndef KVEVICT_TOOLS_RECALL_RANDOM_H_
#define KVEVICT_TOOLS_RECALL_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvevict::tools {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  // The bias of the remainder is below n / 2^64.
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(Next() % n); }

  // The number is in [0, 1), with 53 bits.
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Fisher-Yates, from the end.
  template <typename T>
  void Shuffle(std::span<T> items) {
    for (size_t i = items.size() - 1; i > 0; --i) {
      std::swap(items[i], items[Below(static_cast<uint32_t>(i + 1))]);
    }
  }

 private:
  uint64_t state_;
};

// n nearly gaussian values of the given standard deviation.
std::vector<float> Gauss(uint64_t seed, size_t n, double deviation);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_RECALL_RANDOM_H_
