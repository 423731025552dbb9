// Copies rows to other planes and compares every byte of both memories with the oracle.
#include "cuda/kernels/copy_rows.cu"

#include "tests/cuda/kernels/keep_cases.h"

namespace kvevict {
namespace {

using Kernel = void (*)(const cuda::GatherParams&);

Kernel CopyKernel(uint32_t unit) {
  switch (unit) {
    case 16:
      return cuda::copy_rows_16;
    case 4:
      return cuda::copy_rows_4;
    default:
      return cuda::copy_rows_1;
  }
}

void Copy(Case c, uint32_t unit, uint32_t turn) {
  cuda::GatherParams p = c.params();
  cuda::DealChunks(&p, unit);
  const uint64_t n_blocks = cuda::ChunkBlocks(p, unit, c.longest());
  if (n_blocks == 0) return;
  Run(CopyKernel(unit), {static_cast<uint32_t>(n_blocks)}, cuda::kChunkThreads,
      p, Schedule(turn));
  ExpectMoved(c.planes, "copied", turn);
}

// Contiguous and paged rows go to contiguous and paged planes, in every unit.
void TestLayouts() {
  Random random(TestSeed("copy_rows/layouts"));
  for (uint32_t turn = 0; turn < 120; ++turn) {
    const uint32_t unit = 1u << turn % 5;
    const uint32_t n_slots =
        turn % 9 == 0 ? 3000 / unit : 1 + random.Below(200);
    const Shape s = RandomShape(random, unit, n_slots);
    Case c = RandomCopies(s, unit, 1 + random.Below(3), random);
    const uint32_t largest = cuda::GatherUnit(c.params());
    if (largest < unit) Fail("case %u: unit %u, not %u", turn, largest, unit);
    Copy(c, cuda::ColumnUnit(turn % 3 == 0 ? unit : largest), turn);
  }
}

// Rows are wider than a block: 300 columns of 16 bytes.
void TestWideRows() {
  Random random(TestSeed("copy_rows/wide"));
  Shape s = {};
  s.n_slots = 100;
  s.n_heads = s.n_lists = s.n_pieces = 1;
  s.row_bytes = 4800;
  s.row_stride = 4800;
  s.bytes = 480000;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    Copy(RandomCopies(s, 16, 1, random), 16, turn);
  }
}

// The addresses of the other plane also limit the unit.
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
  kvevict::TestLayouts();
  kvevict::TestWideRows();
  kvevict::TestUnit();
}
