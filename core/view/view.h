// Checks of views, and the rows that kernels see.
#ifndef KVEVICT_CORE_VIEW_VIEW_H_
#define KVEVICT_CORE_VIEW_VIEW_H_

#include <algorithm>
#include <cstdint>

#include "core/evict/keep_lists.h"
#include "core/kernels/row_source.h"
#include "core/parts.h"
#include "core/status.h"
#include "core/view/row_change.h"

namespace kvevict {

// The most heads of a geometry or a view: what CUDA can count along one axis of
// a grid.
inline constexpr uint32_t kMaxHeads = 65535;

inline bool IsPresent(const kvevict_plane& plane) {
  return plane.data != 0 || plane.address_table != 0;
}

// Whether a companion has the last rows, which are not quantized and lie apart.
inline bool IsRecent(const kvevict_plane& plane) {
  return plane.role == KVEVICT_ROLE_KEY_RECENT ||
         plane.role == KVEVICT_ROLE_VALUE_RECENT;
}

// The first slot in recent planes; UINT32_MAX if there are none.
uint32_t FirstRecent(const kvevict_view& view);

// The number of n slots that are in recent planes.
inline uint32_t RecentOf(const kvevict_view& view, uint32_t n) {
  return n - std::min(n, FirstRecent(view));
}

// Whether a plane of a valid view has the same numbers for all tokens and so is
// never moved.
inline bool IsConstant(const kvevict_view& view, const kvevict_plane& plane) {
  return plane.role != KVEVICT_ROLE_NONE && !IsRecent(plane) &&
         plane.token_stride_bytes == 0 && plane.address_table == 0 &&
         (view.block_size == 0 || plane.block_stride_bytes == 0);
}

// Whether a plane of a valid view has rows that move.
inline bool HasRows(const kvevict_view& view, const kvevict_plane& plane) {
  return IsPresent(plane) && !IsConstant(view, plane);
}

// Whether caches of a valid geometry have V: elements, or opaque rows.
inline bool HasValues(const kvevict_layer_geometry& g) {
  return g.v_head_dim > 0 || g.v_dtype == KVEVICT_DTYPE_OPAQUE;
}

// Bytes of one row of a valid plane.
uint32_t RowBytes(const kvevict_plane& plane);

// Bytes from one element to the next in a valid plane, or in a group of it; 0
// if elements are not whole bytes.
int64_t ElementStride(const kvevict_plane& plane);

// The same rows with strides of 0 replaced by those of packed [heads, n_rows]
// rows of row_bytes.
kvevict_plane WithPackedStrides(kvevict_plane rows, int64_t row_bytes,
                                uint32_t n_rows);

// Bytes of a valid plane's row that lie end to end: the whole row, a group or
// an element.
uint32_t PieceBytes(const kvevict_plane& plane);

// The pieces of a row, each of piece_bytes end to end, which divides
// PieceBytes(). Piece i is at (i / in_group) * group_stride + (i % in_group) *
// stride.
struct RowPieces {
  uint32_t n = 1;
  int64_t stride = 0;
  uint32_t in_group = 0;  // 0: all
  int64_t group_stride = 0;
};
RowPieces PiecesOf(const kvevict_plane& plane, uint32_t piece_bytes);

// Whether slots are the rows that their number and the block table say.
inline bool IsPlain(const kvevict_view& view, const kvevict_plane& plane) {
  return plane.address_table == 0 && view.ring_slots == 0;
}

// See kvevict_view_validate(). Block tables on another device are not read, nor
// entries of slots before first_slot. `tokens` is per KV head, in host memory.
Status ValidateView(const kvevict_view& view, const ListCounts& tokens,
                    bool on_host, uint32_t first_slot = 0);

// The same for a view that is only read: its planes may share memory.
Status ValidateReadView(const kvevict_view& view, const ListCounts& tokens,
                        bool on_host, uint32_t first_slot = 0);

// Checks that a valid view's slots from first_slot on may be written: no block
// is marked as shared.
Status CheckNotShared(const kvevict_view& view, uint32_t first_slot);

// Checks a plane that is only read, [n_heads, n_rows, head_dim] of a dtype.
Status ValidateRows(const char* name, const kvevict_plane& rows,
                    kvevict_dtype dtype, uint32_t head_dim, uint32_t n_heads,
                    uint32_t n_rows);

// Fills in from the geometry what a view leaves at 0: n_kv_heads, dtype and
// head_dim of K and V, and with these the strides of packed [tokens, heads,
// head_dim] rows.
void FillFrom(const kvevict_layer_geometry& geometry, kvevict_view* view);

// Checks that the planes of a valid view, where present, have the shapes and
// dtypes of a geometry.
Status MatchGeometry(const kvevict_view& view,
                     const kvevict_layer_geometry& geometry);

// Checks that a view has all the planes of a geometry, since a missing plane
// would not be moved.
Status CheckComplete(const kvevict_view& view,
                     const kvevict_layer_geometry& geometry);

// The companion with a role; nullptr if there is none.
const kvevict_plane* FindRole(const kvevict_view& view, kvevict_role role);

// The biases of slots; nullptr if the view, or this build, has none.
inline const kvevict_plane* BiasesOf(const kvevict_view& view) {
  return kHasBiases ? FindRole(view, KVEVICT_ROLE_BIAS) : nullptr;
}

// Checks that K and V of a valid view have the scales needed to read them.
Status CheckScales(const kvevict_view& view, bool reads_keys,
                   bool reads_values);

// The companion of a valid view that has the scales, or the minima, of one of
// its planes; nullptr if there is none.
const kvevict_plane* FindNumbers(const kvevict_view& view,
                                 const kvevict_plane& plane, bool minimum);

// The companion with the recent rows of one of its planes, or nullptr.
const kvevict_plane* FindRecent(const kvevict_view& view,
                                const kvevict_plane& plane);

// One head's rows of a valid, present plane of `view`, with scale and minimum
// from its companions.
RowSource HeadRows(const kvevict_view& view, const kvevict_plane& plane,
                   uint32_t head);

// One head's biases, f32 by slot. base nullptr: the view has none.
RowSource HeadBiases(const kvevict_view& view, uint32_t head);

// Whether groups of tokens share scales or minima, for K and V of a valid view.
RowChange GroupedRows(const kvevict_view& view);

// Checks that rows can move one by one: no group of tokens shares scales, and
// there are no recent rows.
Status CheckMovesByRow(const kvevict_view& view);

// Calls visit(plane, other's plane) for K, V and companions of two views with
// the same planes, if they have rows and do not change. Companion i is left out
// if bit i of `left_out` is set.
template <typename Visit>
void ForEachPlanePair(const kvevict_view& view, const kvevict_view& other,
                      const Visit& visit, uint64_t left_out = 0,
                      const RowChange& change = {}) {
  if (IsPresent(view.k) && !change.k) visit(view.k, other.k);
  if (IsPresent(view.v) && !change.v) visit(view.v, other.v);
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const kvevict_plane& plane = view.companions[i];
    if ((left_out >> i & 1) != 0 || !HasRows(view, plane)) continue;
    if (change.Covers(plane)) continue;
    visit(plane, other.companions[PartnerOf(view, other, change, i)]);
  }
}

// The same for one view: visit(plane).
template <typename Visit>
void ForEachPlane(const kvevict_view& view, const Visit& visit,
                  uint64_t left_out = 0) {
  ForEachPlanePair(
      view, view,
      [&](const kvevict_plane& plane, const kvevict_plane&) { visit(plane); },
      left_out);
}

// Bytes of n_tokens of a head. The last n_recent of them are recent.
uint64_t HeadBytes(const kvevict_view& view, uint32_t n_tokens,
                   uint32_t n_recent, uint64_t left_out = 0);

// Finds a dtype. Fails for numbers that are none, and for dtypes that this build
// leaves out.
Status FindBuiltDType(const char* name, kvevict_dtype dtype,
                      const struct DTypeInfo** out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_VIEW_VIEW_H_
