// Launches that multiply all pairs of keys, in parts: Windows resets the GPU of
// a display if a kernel takes 2 s.
#ifndef KVEVICT_CUDA_LAUNCH_PARTS_H_
#define KVEVICT_CUDA_LAUNCH_PARTS_H_

#include <algorithm>
#include <cstdint>

#include "core/checked_math.h"
#include "core/status.h"

namespace kvevict::cuda {

// The multiply-adds of a launch. An H100, with 132 multiprocessors, was measured
// at 28.5 ms for so many, without tensor cores.
inline constexpr uint64_t kMostProducts = uint64_t{1} << 38;

// How many blocks or layers with so many multiply-adds each a launch may have,
// at least 1.
constexpr uint32_t MostInLaunch(CheckedSize products) {
  if (!products.ok()) return 1;
  const uint64_t most = kMostProducts / std::max<uint64_t>(products.value(), 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(most, 1, UINT32_MAX));
}

// Calls launch(first, n) for blocks [first, first + n) of n_blocks, each with so
// many multiply-adds.
template <typename Launch>
Status LaunchInParts(uint32_t n_blocks, CheckedSize products,
                     const Launch& launch) {
  const uint32_t most = MostInLaunch(products);
  for (uint32_t first = 0; first < n_blocks;) {
    const uint32_t n = std::min(most, n_blocks - first);
    KV_RETURN_IF_ERROR(launch(first, n));
    first += n;
  }
  return Status();
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_LAUNCH_PARTS_H_
