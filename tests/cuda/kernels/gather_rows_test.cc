// Compacts in place and compares every byte of the memory with the oracle.
#include "cuda/kernels/gather_rows.cu"

#include <algorithm>
#include <numeric>

#include "tests/cuda/kernels/keep_cases.h"

namespace kvevict {
namespace {

using Kernel = void (*)(const cuda::GatherParams&);

Kernel ColumnKernel(uint32_t unit) {
  switch (unit) {
    case 16:
      return cuda::gather_columns_16;
    case 4:
      return cuda::gather_columns_4;
    default:
      return cuda::gather_columns_1;
  }
}

void GatherByColumns(Case c, uint32_t unit, uint32_t turn) {
  const cuda::GatherParams p = c.params();
  unit = cuda::ColumnUnit(unit);
  Run(ColumnKernel(unit), {cuda::ColumnBlocks(p, unit), p.n_planes},
      cuda::kColumnThreads, p, Schedule(turn));
  ExpectMoved(c.planes, "by columns", turn);
}

Kernel ChunkKernel(uint32_t unit) {
  switch (unit) {
    case 16:
      return cuda::gather_chunks_16;
    case 8:
      return cuda::gather_chunks_8;
    case 4:
      return cuda::gather_chunks_4;
    case 2:
      return cuda::gather_chunks_2;
    default:
      return cuda::gather_chunks_1;
  }
}

void GatherByChunks(Case c, uint32_t unit, uint32_t turn,
                    uint32_t resident_blocks) {
  cuda::GatherParams p = c.params();
  cuda::DealChunks(&p, unit);
  const uint64_t n_blocks = cuda::ChunkBlocks(p, unit, c.longest());
  if (n_blocks == 0) return;
  std::vector<uint32_t> tickets(cuda::ChunkTickets(n_blocks));
  p.scratch = Address(tickets.data());
  Run(ChunkKernel(unit), {static_cast<uint32_t>(n_blocks)}, cuda::kChunkThreads,
      p, Schedule(turn, resident_blocks));
  ExpectMoved(c.planes, "by chunks", turn);
}

// There are more rows than twice what a thread has under way, in every unit.
void TestColumns() {
  Random random(TestSeed("gather_rows/columns"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    const uint32_t unit = turn % 2 == 0 ? 16 : 1u << turn / 2 % 4;
    const Shape s = RandomShape(random, unit, 1 + random.Below(120));
    GatherByColumns(RandomCase(s, 1 + random.Below(3), random), unit, turn);
  }
}

// Some columns have three chunks and more, in every possible unit.
void TestChunks() {
  Random random(TestSeed("gather_rows/chunks"));
  for (uint32_t turn = 0; turn < 90; ++turn) {
    const uint32_t unit = 1u << turn % 5;
    const uint32_t n_slots =
        turn % 9 == 0 ? 5000 / unit : 1 + random.Below(300);
    const Shape s = RandomShape(random, unit, n_slots);
    Case c = RandomCase(s, 1 + random.Below(3), random);
    const uint32_t largest = cuda::GatherUnit(c.params());
    if (largest < unit) Fail("case %u: unit %u, not %u", turn, largest, unit);
    GatherByChunks(c, turn % 3 == 0 ? unit : largest, turn, 1 + turn / 4 % 4);
  }
}

// Lists are dense, so every chunk waits for the one before: 48 rows each of 40
// columns, in every unit, contiguous, paged and in a ring.
void TestNeighbours() {
  Random random(TestSeed("gather_rows/neighbours"));
  for (uint32_t turn = 0; turn < 60; ++turn) {
    const uint32_t unit = 1u << turn % 5;
    const uint32_t form = turn / 5 % 3;
    Shape s = {};
    s.n_slots = 500;
    s.n_heads = s.n_lists = s.n_pieces = 1;
    s.row_bytes = 40 * unit;
    s.row_stride = s.row_bytes;
    s.block_size = form == 1 ? 20 : 0;
    s.is_ring = form == 2;
    s.ring_first = form == 2 ? 1 + random.Below(s.n_slots - 1) : 0;
    s.block_stride = s.block_size * s.row_stride;
    s.bytes = size_t{s.n_slots} * s.row_bytes;
    const uint32_t n_gone = 1 + random.Below(50);
    const uint32_t first_slot = turn % 3 == 0 ? 0 : random.Below(100);
    const auto last_ones = [](uint32_t n_slots, uint32_t n, Random&) {
      std::vector<int32_t> keep(n);
      std::iota(keep.begin(), keep.end(), n_slots - n);
      return keep;
    };
    Case c;
    c.shape = s;
    c.planes = {MakePlane(s, s.n_slots - first_slot - n_gone, random, last_ones,
                          first_slot)};
    GatherByChunks(c, unit, turn, 1 + turn / 15);
  }
}

// Rows are wider than a block: 300 columns of 16 bytes.
void TestWideRows() {
  Random random(TestSeed("gather_rows/wide"));
  Shape s = {};
  s.n_slots = 100;
  s.n_heads = s.n_lists = s.n_pieces = 1;
  s.row_bytes = 4800;
  s.row_stride = 4800;
  s.bytes = 480000;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    const Case c = RandomCase(s, 1, random);
    GatherByColumns(c, 16, turn);
    GatherByChunks(c, 16, turn, 1);
  }
}

// ---- The rule ----

cuda::GatherParams ModelParams(uint32_t n_layers, uint32_t n_heads) {
  cuda::GatherParams p = {};
  p.row_bytes = 256;
  p.n_pieces = 1;
  p.n_heads = n_heads;
  p.n_planes = 2 * n_layers;
  p.rows.row_stride = 256 * n_heads;
  p.rows.head_stride = 256;
  p.to = p.rows;
  return p;
}

void TestRule() {
  // 36 layers of 8 heads of 128 16-bit elements go by columns, 28 of 2 do not.
  if (!cuda::GatherByColumns(ModelParams(36, 8), 16)) Fail("36 layers");
  if (cuda::GatherByColumns(ModelParams(28, 2), 16)) Fail("28 layers");
}

// The addresses of another plane, to which rows are copied, also limit the unit.
void TestUnit() {
  cuda::GatherParams p = {};
  p.row_bytes = p.rows.row_stride = p.to.row_stride = 64;
  p.n_pieces = p.n_heads = p.n_planes = 1;
  if (cuda::GatherUnit(p) != 16) Fail("unit %u", cuda::GatherUnit(p));
  p.planes[0].to = 4;
  if (cuda::GatherUnit(p) != 4) Fail("unit %u of base", cuda::GatherUnit(p));
  p.planes[0].to = 0;
  p.to.row_stride = 66;
  if (cuda::GatherUnit(p) != 2) Fail("unit %u of rows", cuda::GatherUnit(p));
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestColumns();
  kvevict::TestChunks();
  kvevict::TestNeighbours();
  kvevict::TestWideRows();
  kvevict::TestRule();
  kvevict::TestUnit();
}
