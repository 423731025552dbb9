#include "core/kernels/mass.h"

#include <algorithm>
#include <cstddef>

namespace kvevict {
namespace {

constexpr size_t kSums = 256;

float SumOf(float (&sums)[kSums]) {
  for (size_t n = kSums / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

}  // namespace

Mass MeasureMass(const float* scores, uint32_t n, uint32_t first,
                 const int32_t* keep, uint32_t n_keep) {
  float all[kSums] = {};
  float kept[kSums] = {};
  float largest = 0.0f;
  uint32_t next = 0;  // index in the list
  for (uint32_t i = 0; i < n; ++i) {
    const float mass = MassOf(scores[i]);
    all[i % kSums] += mass;
    if (next < n_keep && static_cast<uint32_t>(keep[next]) == first + i) {
      kept[i % kSums] += mass;
      ++next;
    } else {
      largest = std::max(largest, mass);
    }
  }
  return {SumOf(all), SumOf(kept), largest};
}

}  // namespace kvevict
