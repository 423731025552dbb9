// Rows in any order; every byte of the memory is compared with the oracle.
#include "cuda/kernels/reorder_rows.cu"

#include <algorithm>
#include <numeric>

#include "tests/cuda/kernels/planes.h"

namespace kvevict {
namespace {

// Slots with repeats, a permutation, a ring that begins elsewhere, from the
// end, or ascending.
std::vector<int32_t> RandomSlots(uint32_t n_slots, uint32_t n, Random& random) {
  const uint32_t kind = random.Below(5);
  const uint32_t start = random.Below(n_slots);
  std::vector<int32_t> slots(n_slots);
  std::iota(slots.begin(), slots.end(), 0);
  if (kind == 0) {
    for (int32_t& slot : slots) {
      slot = static_cast<int32_t>(random.Below(n_slots));
    }
  } else if (kind == 1) {
    for (uint32_t i = n_slots; i > 1; --i) {
      std::swap(slots[i - 1], slots[random.Below(i)]);
    }
  } else if (kind == 2) {
    std::rotate(slots.begin(), slots.begin() + start, slots.end());
  } else if (kind == 3) {
    std::reverse(slots.begin(), slots.end());
  } else {
    slots.erase(slots.begin(), slots.begin() + std::min(start, n_slots - n));
  }
  slots.resize(n);
  return slots;
}

using Kernel = void (*)(const cuda::GatherParams&);

struct Steps {
  Kernel stage;
  Kernel place;
};

Steps StepsOf(uint32_t unit) {
  switch (unit) {
    case 16:
      return {cuda::reorder_stage_16, cuda::reorder_place_16};
    case 4:
      return {cuda::reorder_stage_4, cuda::reorder_place_4};
    default:
      return {cuda::reorder_stage_1, cuda::reorder_place_1};
  }
}

// Runs both launches. The staged rows have exactly the memory that they need.
void Reorder(const Shape& s, std::vector<Plane> planes, uint32_t unit,
             uint32_t turn) {
  const std::vector<Plane> before = planes;
  cuda::GatherParams p = ParamsFor(s, planes);
  cuda::DealChunks(&p, unit);
  const uint32_t n_keep = planes[0].n_keep;
  std::vector<uint8_t> staged(size_t{p.n_planes} * n_keep * s.n_heads *
                              s.n_pieces * s.row_bytes);
  p.scratch = Address(staged.data());
  const auto n_blocks =
      static_cast<uint32_t>(cuda::ChunkBlocks(p, unit, n_keep));
  if (n_blocks == 0) return;
  const Steps steps = StepsOf(unit);
  Run(steps.stage, {n_blocks}, cuda::kChunkThreads, p, Schedule(turn));
  for (size_t i = 0; i < planes.size(); ++i) {
    ExpectSame(planes[i].memory, before[i].memory, "staged", turn);
  }
  Run(steps.place, {n_blocks}, cuda::kChunkThreads, p, Schedule(turn + 1));
  ExpectMoved(planes, "reordered", turn);
}

// The planes of one job, with equally many slots.
std::vector<Plane> MakePlanes(const Shape& s, Random& random) {
  const uint32_t n_planes = 1 + random.Below(3);
  const uint32_t n = RandomCount(s.n_slots, random);
  std::vector<Plane> planes;
  while (planes.size() < n_planes) {
    planes.push_back(MakePlane(s, n, random, RandomSlots));
  }
  return planes;
}

// One chunk and several, contiguous and paged, one list and one per head.
void TestOrders() {
  Random random(TestSeed("reorder_rows/orders"));
  for (uint32_t turn = 0; turn < Turns(120); ++turn) {
    const uint32_t unit = turn % 2 == 0 ? 16 : 1u << turn / 2 % 4;
    const uint32_t n_slots =
        turn % 9 == 0 ? 5000 / unit : 1 + random.Below(300);
    const Shape s = RandomShape(random, unit, n_slots);
    Reorder(s, MakePlanes(s, random), cuda::ColumnUnit(unit), turn);
  }
}

// Rows are wider than a block: 300 columns of 16 bytes.
void TestWideRows() {
  Random random(TestSeed("reorder_rows/wide"));
  Shape s = {};
  s.n_slots = 60;
  s.n_heads = s.n_lists = s.n_pieces = 1;
  s.row_bytes = 4800;
  s.row_stride = 4800;
  s.bytes = 288000;
  for (uint32_t turn = 0; turn < 6; ++turn) {
    Reorder(s, {MakePlane(s, 20 * (turn % 4), random, RandomSlots)}, 16, turn);
  }
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestOrders();
  kvevict::TestWideRows();
}
