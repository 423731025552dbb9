#include "core/view/extent.h"

#include <algorithm>

namespace kvevict {

Grid::Grid(const PlaneAxes& plane) : extent(plane), unit(plane.unit) {
  for (const PlaneAxes::Axis& axis : {plane.elements, plane.groups, plane.heads,
                                      plane.tokens, plane.blocks}) {
    if (axis.n == 1) continue;
    const uint64_t stride = Magnitude(axis.stride);
    int i = n_axes++;
    for (; i > 0 && axes[i - 1].stride > stride; --i) axes[i] = axes[i - 1];
    axes[i] = {stride, axis.n};
  }
}

bool Grid::Nests() const {
  Wide reach = unit;
  for (int i = 0; i < n_axes; ++i) {
    if (axes[i].stride < reach) return false;
    reach += Wide{axes[i].stride} * (axes[i].n - 1);
  }
  return true;
}

bool Grid::Collides() const {
  for (int i = 0; i < n_axes; ++i) {
    const Wide fine = axes[i].stride;
    if (fine < unit) return true;
    for (int j = i + 1; j < n_axes; ++j) {
      const Wide rest = axes[j].stride % fine;
      const Wide steps = axes[j].stride / fine;
      if (rest < unit && steps < axes[i].n) return true;
      if (fine - rest < unit && steps + 1 < axes[i].n) return true;
    }
  }
  return false;
}

void Grid::Merge() {
  int n_merged = 0;
  for (; n_merged < n_axes; ++n_merged) {
    const Axis& axis = axes[n_merged];
    if (axis.stride != 0 && axis.stride != unit) break;
    if (axis.stride == unit) unit *= axis.n;
  }
  std::copy(axes + n_merged, axes + n_axes, axes);
  n_axes -= n_merged;
}

}  // namespace kvevict
