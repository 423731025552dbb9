// Which layers and planes lie alike, so that one launch serves them.
#ifndef KVEVICT_CUDA_ROW_LAYOUT_H_
#define KVEVICT_CUDA_ROW_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "core/backend.h"
#include "core/status.h"
#include "core/view.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"

namespace kvevict::cuda {

inline RowLayout LayoutOf(const kvevict_view& view,
                          const kvevict_plane& plane) {
  const bool opaque = plane.dtype == KVEVICT_DTYPE_OPAQUE;
  return {plane.token_stride_bytes,
          plane.head_stride_bytes,
          opaque ? 0 : ElementStride(plane),
          plane.block_stride_bytes,
          view.block_size,
          0};
}

inline bool SameLayout(const RowLayout& a, const RowLayout& b) {
  return a.row_stride == b.row_stride && a.head_stride == b.head_stride &&
         a.element_stride == b.element_stride &&
         a.block_stride == b.block_stride && a.block_size == b.block_size;
}

// The tokens of the longest job; no layer is shorter than one.
template <typename Job>
uint32_t LongestOf(Jobs<Job> jobs) {
  uint32_t longest = 1;
  for (const Job& job : jobs) longest = std::max(longest, job.n_tokens);
  return longest;
}

template <typename Job>
uint32_t Size(Jobs<Job> jobs) {
  return static_cast<uint32_t>(jobs.size());
}

// As the kernels have it.
inline SlotPositions ParamsOf(const kvevict::SlotPositions& slots) {
  return {AddressOf(slots.kept), slots.n_kept, slots.tail_position};
}

// Calls run(items) for runs of at most `most` neighbours that go together.
template <typename T, typename Together, typename Run>
Status ForEachBatch(Jobs<T> items, size_t most, const Together& together,
                    const Run& run) {
  while (!items.empty()) {
    size_t n = 1;
    while (n < items.size() && n < most && together(items[0], items[n])) ++n;
    KV_RETURN_IF_ERROR(run(items.first(n)));
    items = items.subspan(n);
  }
  return Status();
}

// The same where any go together.
template <typename T, typename Run>
Status ForEachBatch(Jobs<T> items, size_t most, const Run& run) {
  return ForEachBatch(
      items, most, [](const T&, const T&) { return true; }, run);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_ROW_LAYOUT_H_
