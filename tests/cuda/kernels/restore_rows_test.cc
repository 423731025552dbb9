// Takes compaction back and compares every byte of both memories with the rows that it
// moved.
#include "cuda/kernels/restore_rows.cu"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/cuda/kernels/keep_cases.h"

namespace kvevict {
namespace {

using Kernel = void (*)(const cuda::GatherParams&);

Kernel RestoreKernel(uint32_t unit) {
  switch (unit) {
    case 16:
      return cuda::restore_columns_16;
    case 4:
      return cuda::restore_columns_4;
    default:
      return cuda::restore_columns_1;
  }
}

size_t RowAt(const Shape& s, const PlaneMemory& plane, uint32_t head,
             uint32_t piece, uint32_t slot) {
  if (s.is_ring) slot = (slot + s.ring_first) % s.n_slots;
  int64_t at = static_cast<int64_t>(s.offset + s.first) + head * s.head_stride +
               piece * s.piece_stride;
  if (s.block_size == 0) return static_cast<size_t>(at + slot * s.row_stride);
  const int32_t block =
      plane.table[head * plane.table_head_stride + slot / s.block_size];
  return static_cast<size_t>(at + block * s.block_stride +
                             slot % s.block_size * s.row_stride);
}

// Restores a plane by hand: `keep` has the evicted slots, and `plane.to` their
// rows.
void RestoreByHand(const Shape& s, const Shape& saved, Plane& plane) {
  plane.expected = plane.memory;
  plane.to.expected = plane.to.memory;
  for (uint32_t head = 0; head < s.n_heads; ++head) {
    const uint32_t list = s.n_lists == 1 ? 0 : head;
    const int32_t* evicted = plane.keep.data() + list * plane.keep_stride;
    const uint32_t n = plane.counts[list];
    const uint32_t n_slots =
        static_cast<uint32_t>(evicted[n]) + plane.first_slot;
    for (uint32_t piece = 0; piece < s.n_pieces; ++piece) {
      uint32_t gone = 0;
      for (uint32_t slot = 0; slot < n_slots && n > 0; ++slot) {
        const bool is_saved =
            gone < n && evicted[gone] == static_cast<int32_t>(slot);
        const uint8_t* const from =
            is_saved
                ? &plane.to.memory[RowAt(saved, plane.to, head, piece, gone)]
                : &plane.memory[RowAt(s, plane, head, piece, slot - gone)];
        std::memcpy(&plane.expected[RowAt(s, plane, head, piece, slot)], from,
                    s.row_bytes);
        gone += is_saved;
      }
    }
  }
}

// Lists of evicted slots, each followed by how many tokens there were. Some slots
// more are in use since.
Case RandomEvictions(const Shape& s, uint32_t unit, uint32_t n_planes,
                     Random& random) {
  Case c;
  c.shape = s;
  if (c.shape.keep_gap == 0) c.shape.keep_gap = random.Below(2);
  do {
    c.to_shape = RandomLayout(random, unit, s.n_slots + 1, c.shape);
  } while (c.to_shape->block_size != 0 || c.to_shape->is_ring);
  const bool differ = c.shape.keep_gap > 0;
  const uint32_t n_evicted = RandomCount(s.n_slots, random);
  while (c.planes.size() < n_planes) {
    Plane plane = {};
    static_cast<PlaneMemory&>(plane) = MakeMemory(c.shape, random);
    plane.to = MakeMemory(*c.to_shape, random);
    plane.n_keep = n_evicted;
    plane.keep_stride = s.n_slots + 1;
    plane.keep.assign(size_t{c.shape.n_lists} * plane.keep_stride, INT32_MAX);
    plane.first_slot = random.Below(s.n_slots - n_evicted + 1);
    const uint32_t n_then = s.n_slots - plane.first_slot;
    for (uint32_t list = 0; list < c.shape.n_lists; ++list) {
      const uint32_t n = differ ? random.Below(n_evicted + 1) : n_evicted;
      const uint32_t n_held =
          differ ? n + random.Below(n_then - n + 1) : n_then;
      const std::vector<int32_t> evicted = RandomKeep(n_held, n, random);
      int32_t* const to = plane.keep.data() + size_t{list} * plane.keep_stride;
      std::copy(evicted.begin(), evicted.end(), to);
      to[n] = static_cast<int32_t>(n_held);
      plane.counts.push_back(n);
    }
    RestoreByHand(c.shape, *c.to_shape, plane);
    c.planes.push_back(std::move(plane));
  }
  return c;
}

void Restore(Case c, uint32_t unit, uint32_t turn) {
  cuda::GatherParams p = c.params();
  p.keep_stride = c.planes[0].keep_stride;
  Run(RestoreKernel(unit), {cuda::ColumnBlocks(p, unit), p.n_planes},
      cuda::kColumnThreads, p, Schedule(turn));
  ExpectMoved(c.planes, "restored", turn);
}

// Contiguous and paged from contiguous and paged, in every unit, with one list and
// one per head, of one length and of several.
void TestLayouts() {
  Random random(TestSeed("restore_rows/layouts"));
  for (uint32_t turn = 0; turn < 150; ++turn) {
    const uint32_t unit = 1u << turn % 5;
    const uint32_t n_slots = 1 + random.Below(turn % 9 == 0 ? 400 : 100);
    const Shape s = RandomShape(random, unit, n_slots);
    Case c = RandomEvictions(s, unit, 1 + random.Below(3), random);
    const uint32_t largest = cuda::GatherUnit(c.params());
    if (largest < unit) Fail("case %u: unit %u, not %u", turn, largest, unit);
    Restore(c, cuda::ColumnUnit(turn % 3 == 0 ? unit : largest), turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() { kvevict::TestLayouts(); }
