// Planes with ascending keep lists, whose rows move in place or to other planes.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_KEEP_CASES_H_
#define KVEVICT_TESTS_CUDA_KERNELS_KEEP_CASES_H_

#include <algorithm>
#include <optional>
#include <vector>

#include "cuda/kernels/gather_rows.h"
#include "tests/cuda/kernels/planes.h"

namespace kvevict {

// Ascending: dense or sparse, shifted by one or a few, or with holes in groups.
inline std::vector<int32_t> RandomKeep(uint32_t n_slots, uint32_t n_keep,
                                       Random& random) {
  std::vector<int32_t> keep;
  const uint32_t kind = random.Below(3);
  const uint32_t n_gone = n_slots - n_keep;
  uint32_t gone = 0;
  for (uint32_t i = 0; i < n_slots; ++i) {
    const uint32_t left = n_gone - gone;
    const bool drop = kind == 0 ? left > 0
                      : kind == 1
                          ? random.Below(n_slots - i) < left
                          : left > 0 && (i / 7 % 2 == 1 || left == n_slots - i);
    if (drop) {
      ++gone;
    } else {
      keep.push_back(static_cast<int32_t>(i));
    }
  }
  return keep;
}

// Planes of a launch, and the layout of the planes that their rows go to.
struct Case {
  Shape shape = {};
  std::optional<Shape> to_shape;  // none: in place
  std::vector<Plane> planes;

  const Shape* to() const { return to_shape ? &*to_shape : nullptr; }
  cuda::GatherParams params() { return ParamsFor(shape, planes, to()); }
  uint32_t longest() const {
    uint32_t n_keep = 0;
    for (const Plane& plane : planes) n_keep = std::max(n_keep, plane.n_keep);
    return n_keep;
  }
};

// Rows go to slots from any first one on, at most most_first.
inline void AddPlanes(Case* c, uint32_t n_planes, uint32_t most_first,
                      Random& random) {
  const bool from_0 = random.Below(3) == 0;
  while (c->planes.size() < n_planes) {
    const uint32_t first = from_0 ? 0 : random.Below(most_first + 1);
    const uint32_t n_slots =
        c->shape.n_slots - (c->to() == nullptr ? first : 0);
    c->planes.push_back(MakePlane(c->shape, RandomCount(n_slots, random),
                                  random, RandomKeep, first, c->to()));
  }
}

// Rows move in place.
inline Case RandomCase(const Shape& s, uint32_t n_planes, Random& random) {
  Case c;
  c.shape = s;
  AddPlanes(&c, n_planes, s.n_slots, random);
  return c;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_KEEP_CASES_H_
