#include "core/overlap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/view.h"

namespace kvevict {
namespace {

using Wide = __int128;  // holds any product of a count and a stride

struct Axis {
  Wide n;
  Wide stride;  // >= 0
};

// The axes of a plane inside one block, widest stride first.
struct Axes {
  Axis axes[3];
  Wide unit;  // bytes side by side

  Axes(const kvevict_plane& plane, Wide n_tokens, Wide n_heads) {
    const auto axis = [](Wide n, int64_t stride) {
      return Axis{n, stride < 0 ? -Wide{stride} : Wide{stride}};
    };
    const bool opaque = plane.dtype == KVEVICT_DTYPE_OPAQUE;
    unit = opaque ? plane.row_bytes : RowBytes(plane) / plane.head_dim;
    axes[0] = axis(n_tokens, plane.token_stride_bytes);
    axes[1] = axis(n_heads, plane.head_stride_bytes);
    axes[2] = opaque ? Axis{1, 0} : axis(plane.head_dim, ElementStride(plane));
    // Widest first, by exchanges.
    const auto order = [this](int i, int j) {
      if (axes[i].stride < axes[j].stride) std::swap(axes[i], axes[j]);
    };
    order(0, 1), order(1, 2), order(0, 1);
  }

  // Whether two planes with these axes, `distance` bytes apart, share a byte: some
  // steps along the axes bridge the distance to within a unit.
  bool Reach(Wide distance, int i = 0) const {
    if (i >= 3) return distance < unit && distance > -unit;
    const Axis& axis = axes[i];
    if (axis.n <= 1 || axis.stride == 0) return Reach(distance, i + 1);
    // Axes nest, so only the two nearest numbers of steps can do.
    const Wide floor = distance >= 0
                           ? distance / axis.stride
                           : -((-distance + axis.stride - 1) / axis.stride);
    for (const Wide steps : {floor, floor + 1}) {
      if (steps < axis.n && steps > -axis.n &&
          Reach(distance - steps * axis.stride, i + 1)) {
        return true;
      }
    }
    return false;
  }
};

// Bytes from the lowest address of a plane to its base, where strides are negative.
Wide BelowBase(const kvevict_plane& plane, Wide n_tokens, Wide n_heads) {
  const auto below = [](Wide n, int64_t stride) {
    return stride < 0 ? -Wide{stride} * (n - 1) : Wide{0};
  };
  Wide bytes = below(n_tokens, plane.token_stride_bytes) +
               below(n_heads, plane.head_stride_bytes);
  if (plane.dtype != KVEVICT_DTYPE_OPAQUE) {
    bytes += below(plane.head_dim, ElementStride(plane));
  }
  return bytes;
}

bool SameAxes(const Axes& a, const Axes& b) {
  const auto same = [](const Axis& x, const Axis& y) {
    return x.n == y.n && x.stride == y.stride;
  };
  return a.unit == b.unit && std::equal(a.axes, a.axes + 3, b.axes, same);
}

// Whether two planes provably share a byte of one block (or of a contiguous cache).
bool PlanesOverlap(const kvevict_plane& a, const kvevict_plane& b,
                   uint32_t n_tokens, uint32_t n_heads) {
  if (!IsPresent(a) || !IsPresent(b) || n_tokens == 0) return false;
  const Axes axes(a, n_tokens, n_heads);
  if (!SameAxes(axes, Axes(b, n_tokens, n_heads))) return a.data == b.data;
  return axes.Reach((Wide{b.data} - BelowBase(b, n_tokens, n_heads)) -
                    (Wide{a.data} - BelowBase(a, n_tokens, n_heads)));
}

uint64_t UsedBlocks(const kvevict_view& view, uint32_t n_tokens) {
  if (view.block_size == 0) return 0;
  return (uint64_t{n_tokens} + view.block_size - 1) / view.block_size;
}

bool SameTables(const kvevict_view& a, const kvevict_view& b, uint32_t n_tokens,
                bool on_host) {
  if (!on_host) return a.block_table == b.block_table;
  const uint64_t blocks = UsedBlocks(a, n_tokens);
  return std::equal(a.block_table, a.block_table + blocks, b.block_table);
}

bool AreEqual(const kvevict_view& a, const kvevict_view& b, uint32_t n_tokens,
              bool on_host) {
  return a.n_kv_heads == b.n_kv_heads && a.block_size == b.block_size &&
         a.n_companions == b.n_companions &&
         std::memcmp(&a.k, &b.k, sizeof(a.k)) == 0 &&
         std::memcmp(&a.v, &b.v, sizeof(a.v)) == 0 &&
         SameTables(a, b, n_tokens, on_host) &&
         (a.n_companions == 0 ||
          std::memcmp(a.companions, b.companions,
                      a.n_companions * sizeof(kvevict_plane)) == 0);
}

// Pools keep many layers at one base and tell them apart by block ids.
bool SameFirstRow(const kvevict_view& a, const kvevict_plane& p,
                  const kvevict_view& b, const kvevict_plane& q, bool on_host) {
  if (!IsPresent(p) || !IsPresent(q)) return false;
  if (!on_host) return p.data == q.data && a.block_table == b.block_table;
  return HeadRows(a, p, 0).Row(0) == HeadRows(b, q, 0).Row(0);
}

bool ViewsOverlap(const kvevict_view& a, const kvevict_view& b,
                  uint32_t n_tokens, bool on_host) {
  const bool paged = a.block_size != 0 || b.block_size != 0;
  for (const kvevict_plane* p : {&a.k, &a.v}) {
    for (const kvevict_plane* q : {&b.k, &b.v}) {
      if (paged ? SameFirstRow(a, *p, b, *q, on_host)
                : PlanesOverlap(*p, *q, n_tokens, a.n_kv_heads)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

Sharing CompareViews(const kvevict_view& a, const kvevict_view& b,
                     uint32_t n_tokens, bool on_host) {
  if (n_tokens == 0 || !ViewsOverlap(a, b, n_tokens, on_host)) {
    return Sharing::kNone;
  }
  return AreEqual(a, b, n_tokens, on_host) ? Sharing::kEqual
                                           : Sharing::kOverlap;
}

Status CheckPlanesApart(const kvevict_view& view, uint32_t n_tokens) {
  const uint32_t in_block =
      view.block_size == 0 ? n_tokens : std::min(n_tokens, view.block_size);
  const auto overlap = [&](const kvevict_plane& a, const kvevict_plane& b) {
    return PlanesOverlap(a, b, in_block, view.n_kv_heads);
  };
  if (overlap(view.k, view.v)) {
    return InvalidArgument(
        "k.data 0x%llx and v.data 0x%llx: K and V overlap; leave out v where "
        "values are part of the keys' rows",
        static_cast<unsigned long long>(view.k.data),
        static_cast<unsigned long long>(view.v.data));
  }
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    const kvevict_plane& companion = view.companions[i];
    bool clash = overlap(companion, view.k) || overlap(companion, view.v);
    for (uint32_t j = 0; j < i; ++j) {
      clash = clash || overlap(companion, view.companions[j]);
    }
    if (clash) {
      return InvalidArgument(
          "companions[%u].data 0x%llx overlaps another plane", i,
          static_cast<unsigned long long>(companion.data));
    }
  }
  return Status();
}

}  // namespace kvevict
