// The bytes that the counts and strides of a plane reach.
#ifndef KVEVICT_CORE_VIEW_EXTENT_H_
#define KVEVICT_CORE_VIEW_EXTENT_H_

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "kvevict/kvevict.h"

namespace kvevict {

using Wide = __int128;  // holds any product of a count and a stride

inline uint64_t Magnitude(int64_t stride) {
  const auto bits = static_cast<uint64_t>(stride);
  return stride < 0 ? 0 - bits : bits;
}

// The row of a plane that slot n has or shares. Also the number of rows of n
// slots.
inline uint32_t RowOfSlot(const kvevict_plane& plane, uint32_t n) {
  if (plane.group_tokens == 0) return n;
  return static_cast<uint32_t>(n / plane.group_tokens);
}

inline uint32_t RowsOfSlots(const kvevict_plane& plane, uint32_t n) {
  return n == 0 ? 0 : RowOfSlot(plane, n - 1) + 1;
}

// The places of a plane's rows: `unit` bytes at data, and at every place to
// which steps along the axes lead from there.
struct PlaneAxes {
  struct Axis {
    int64_t stride = 0;
    int64_t n = 1;  // > 0; 1: no axis
  };

  uint64_t data;
  uint32_t unit;
  Axis elements, groups, heads, tokens, blocks;

  PlaneAxes(const kvevict_plane& plane, uint32_t n_heads, uint32_t n_tokens)
      : data(plane.data),
        unit(plane.row_bytes),
        heads{plane.head_stride_bytes, n_heads},
        tokens{plane.token_stride_bytes, n_tokens} {
    const auto dtype = static_cast<DType>(plane.dtype);
    if (ElementBytes(dtype) == 0) {  // rows are packed
      unit += static_cast<uint32_t>(PackedBytes(dtype, plane.head_dim));
      return;
    }
    unit = ElementBytes(dtype);
    const int64_t stride = plane.element_stride_bytes;
    elements = {stride == 0 ? unit : stride, plane.head_dim};
    if (plane.group_elems == 0) return;
    elements.n = plane.group_elems;
    groups = {plane.group_stride_bytes, plane.head_dim / plane.group_elems};
  }
  // The axes of a view's plane with n_tokens in n_blocks, 1 without blocks. A
  // ring counts as a whole. Blocks with addresses count as one block at 0.
  PlaneAxes(const kvevict_view& view, const kvevict_plane& plane,
            uint32_t n_tokens, int64_t n_blocks)
      : PlaneAxes(plane, view.n_kv_heads,
                  view.block_size == 0
                      ? std::max(n_tokens, view.ring_slots)
                      : std::min(std::max(n_tokens, view.ring_slots),
                                 view.block_size)) {
    tokens.n = RowsOfSlots(plane, static_cast<uint32_t>(tokens.n));
    if (plane.address_table == 0) blocks = {plane.block_stride_bytes, n_blocks};
    // Heads with their own block tables may all begin where the block does.
    if (view.block_table_head_stride != 0 && heads.stride == 0) heads.n = 1;
  }
};

// The range [begin, end), which may exceed the address range.
struct Extent {
  Wide begin, end;

  explicit Extent(const PlaneAxes& plane)
      : begin(plane.data), end(begin + plane.unit) {
    Widen(plane.elements);
    Widen(plane.groups);
    Widen(plane.heads);
    Widen(plane.tokens);
    Widen(plane.blocks);
  }
  void Widen(const PlaneAxes::Axis& axis) {
    const Wide span = Wide{axis.stride} * (axis.n - 1);
    (span < 0 ? begin : end) += span;
  }
  void Move(Wide bytes) {
    begin += bytes;
    end += bytes;
  }
  bool Meets(const Extent& other) const {
    return begin < other.end && other.begin < end;
  }
  bool IsAddressable() const { return begin >= 0 && end - 1 <= UINT64_MAX; }
};

// The same axes seen from the lowest byte: every byte is at extent.begin + a
// step along each axis + less than unit. The finest axis comes first.
struct Grid {
  struct Axis {
    uint64_t stride;
    int64_t n;  // > 1
  };

  Extent extent;
  Wide unit;
  Axis axes[5];
  int n_axes = 0;

  explicit Grid(const PlaneAxes& plane);

  // Whether each step of an axis is longer than all that the finer axes reach.
  // Then no two units overlap.
  bool Nests() const;
  // Whether units certainly overlap: those one step of an axis apart, or one
  // step of an axis and some of another. If neither this nor Nests() holds the
  // layout is too intricate to tell.
  bool Collides() const;
  // Turns axes whose steps lie end to end into longer units, and removes axes
  // with stride 0.
  void Merge();
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_EXTENT_H_
