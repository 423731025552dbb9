// Counts errors in keep lists that the host cannot read: slots that do not
// ascend strictly where they must, or are not in [first_slot, n_tokens). For
// contexts with debug set.
#include "check_keep.h"
#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

// A thread checks one slot against the one before it.
KV_KERNEL(check_keep, CheckKeepParams, kCheckKeepThreads, 1) {
  const uint32_t i = blockIdx.x * kCheckKeepThreads + threadIdx.x;
  if (i >= CountOf(p.counts, 0, blockIdx.y, p.n_keep)) return;
  const uint64_t slot =
      p.keep + (uint64_t{blockIdx.y} * p.keep_stride + i) * sizeof(int32_t);
  const int32_t value = LoadGlobal<int32_t>(slot);
  const int32_t before = i == 0 || p.any_order != 0
                             ? static_cast<int32_t>(p.first_slot) - 1
                             : LoadGlobal<int32_t>(slot - sizeof(int32_t));
  const bool right =
      value > before && value >= 0 && static_cast<uint32_t>(value) < p.n_tokens;
  if (!right) AtomicAddGlobal(p.n_wrong, 1);
}

}  // namespace kvevict::cuda
