// The rows of a plane that is requantized, and where each one comes from.
#ifndef KVEVICT_CUDA_KERNELS_REQUANTIZED_ROWS_CUH_
#define KVEVICT_CUDA_KERNELS_REQUANTIZED_ROWS_CUH_

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "requantize.h"

namespace kvevict::cuda {

// The rows of one head. Row i of its list goes to slot plane.first_slot + i.
struct RequantizedRows {
  const RequantizePlane& plane;
  uint32_t head;
  uint32_t n_keep;
  uint64_t keep;  // i32 [n_keep]
  CacheRows from;
  CacheRows to;

  KV_DEVICE RequantizedRows(const RequantizeParams& p,
                            const RequantizePlane& plane, uint32_t head)
      : plane(plane), head(head), from(p.from), to(p.to) {
    const uint32_t list = p.n_lists == 1 ? 0 : head;
    n_keep = CountOf(p.counts, plane.first_count, list, plane.n_keep);
    const uint64_t stride = p.keep_stride == 0 ? plane.n_keep : p.keep_stride;
    keep = plane.keep + list * stride * sizeof(int32_t);
    from.scale.base = plane.from_scale;
    from.minimum.base = plane.from_minimum;
    from.recent.base = plane.from_recent;
    to.scale.base = plane.to_scale;
    to.minimum.base = plane.to_minimum;
    to.recent.base = plane.to_recent;
  }

  KV_DEVICE uint32_t SlotOf(uint32_t i) const {
    if (plane.keep == 0) return i;
    return LoadGlobal<uint32_t>(keep + uint64_t{i} * sizeof(int32_t));
  }
  KV_DEVICE CacheRow From(uint32_t i) const {
    return FindRow(from, plane.from, plane.from_table, head, SlotOf(i));
  }
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REQUANTIZED_ROWS_CUH_
