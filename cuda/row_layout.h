// Which layers and planes have the same layout, so that one launch serves them.
#ifndef KVEVICT_CUDA_ROW_LAYOUT_H_
#define KVEVICT_CUDA_ROW_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "core/backend.h"
#include "core/status.h"
#include "core/view/view.h"
#include "cuda/kernels/params.h"
#include "cuda/launch.h"

namespace kvevict::cuda {

// The layout of a plane's rows, and their base address.
RowLayout LayoutOf(const kvevict_view& view, const kvevict_plane& plane);
inline uint64_t BaseOf(const kvevict_plane& plane) {
  return plane.address_table != 0 ? plane.address_table : plane.data;
}

inline bool SameLayout(const RowLayout& a, const RowLayout& b) {
  return a.row_stride == b.row_stride && a.head_stride == b.head_stride &&
         a.element_stride == b.element_stride &&
         a.block_stride == b.block_stride && a.block_size == b.block_size &&
         a.table_head_stride == b.table_head_stride &&
         a.group_stride == b.group_stride && a.group_elems == b.group_elems &&
         a.far == b.far && a.ring_slots == b.ring_slots &&
         a.ring_first == b.ring_first;
}

// The scales, or the minima, of one of a view's planes; base 0 if it has none.
RowNumbers NumbersOf(const kvevict_view& view, const kvevict_plane& plane,
                     bool minimum);

// The rows of one of a view's planes that are not quantized; base 0 if it has
// none.
RecentRows RecentRowsOf(const kvevict_view& view, const kvevict_plane& plane);

// The rows of keys or values of a view, of a dtype that can be scored.
CacheRows RowsOf(const kvevict_view& view, const kvevict_plane& plane);

// The kinds of rows that a reader of them must support.
inline RowKinds KindsOf(const CacheRows& rows) {
  return {1u << rows.dtype, rows.scale.group_tokens != 0 ||
                                rows.minimum.group_tokens != 0 ||
                                rows.recent.base != 0};
}

// Whether two views' planes have scales, minima and recent rows with the same
// layout, or none.
bool HaveLikeNumbers(const kvevict_view& a, const kvevict_plane& plane_a,
                     const kvevict_view& b, const kvevict_plane& plane_b);

// Whether they share the same scales, minima and recent rows, or have none.
bool ShareNumbers(const kvevict_view& a, const kvevict_plane& plane_a,
                  const kvevict_view& b, const kvevict_plane& plane_b);

// Whether both views' slots have biases with the same layout, or none has any.
bool HaveLikeBiases(const kvevict_view& a, const kvevict_view& b);

// Whether two layers' planes can be read in one launch.
inline bool ReadAlike(const kvevict_view& a, const kvevict_plane& plane_a,
                      const kvevict_view& b, const kvevict_plane& plane_b) {
  return SameLayout(LayoutOf(a, plane_a), LayoutOf(b, plane_b)) &&
         (plane_a.data - plane_b.data) % 16 == 0 &&
         ShareNumbers(a, plane_a, b, plane_b);
}

inline uint32_t TokensOf(const ReduceJob& job) { return job.n_tokens; }
template <typename Job>
uint32_t TokensOf(const Job& job) {
  return Scored(job).tokens.most;
}

// The tokens of the longest job, at least 1.
template <typename Job>
uint32_t LongestOf(Jobs<Job> jobs) {
  uint32_t longest = 1;
  for (const Job& job : jobs) longest = std::max(longest, TokensOf(job));
  return longest;
}

template <typename Job>
uint32_t Size(Jobs<Job> jobs) {
  return static_cast<uint32_t>(jobs.size());
}

// Counts of the lists of a launch's layers, which are in one table: that of the
// first layer.
class Counts {
 public:
  explicit Counts(const ListCounts& first) : first_(first) {}

  CountTable table() const { return {AddressOf(first_.each), first_.step, 0}; }
  int32_t FirstOf(const ListCounts& counts) const {
    return static_cast<int32_t>(counts.each - first_.each);
  }

 private:
  const ListCounts first_;
};

// Whether the counts of two layers can be in one table.
inline bool InOneTable(const ListCounts& a, const ListCounts& b) {
  if (a.each == nullptr || b.each == nullptr) return a.each == b.each;
  const int64_t apart = b.each - a.each;
  return a.step == b.step && apart == static_cast<int32_t>(apart);
}

// The stride of a layer's lists if it differs from their count; 0 if they are
// packed.
inline uint32_t KeepStride(const KeepLists& keep) {
  return keep.stride == keep.count.most ? 0
                                        : static_cast<uint32_t>(keep.stride);
}

// The positions as kernels take them.
inline SlotPositions ParamsOf(const kvevict::SlotPositions& slots,
                              const Counts& kept) {
  return {AddressOf(slots.kept), slots.n_kept.most, slots.tail_position,
          kept.FirstOf(slots.n_kept), slots.first};
}

// Calls run(items) for runs of at most `most` adjacent items that go together.
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

// The same for items that can all go together.
template <typename T, typename Run>
Status ForEachBatch(Jobs<T> items, size_t most, const Run& run) {
  return ForEachBatch(
      items, most, [](const T&, const T&) { return true; }, run);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_ROW_LAYOUT_H_
