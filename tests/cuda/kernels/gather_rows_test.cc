// Compaction in place against the oracle's, every byte of the memory.
#include "cuda/kernels/gather_rows.cu"

#include <algorithm>
#include <numeric>

#include "tests/cuda/kernels/launch.h"
#include "tests/oracle/compact.h"

namespace kvevict {
namespace {

// How the rows of all planes of a launch lie.
struct Shape {
  uint32_t n_slots;
  uint32_t n_heads;
  uint32_t n_lists;
  uint32_t row_bytes;  // of a piece
  uint32_t n_pieces;
  int64_t row_stride;
  int64_t head_stride;
  int64_t piece_stride;
  int64_t block_stride;
  uint32_t block_size;  // 0: contiguous
  size_t bytes;
  size_t first;   // slot 0, head 0
  size_t offset;  // of the lowest byte from a multiple of 16
};

// Rows that allow units of `unit` bytes, in one of the orders that caches have:
// [slots, heads, pieces], [heads, slots, pieces], [heads, pieces, slots].
Shape RandomShape(Random& random, uint32_t unit, uint32_t n_slots) {
  Shape s = {};
  s.n_slots = n_slots;
  s.n_heads = 1 + random.Below(3);
  s.n_lists = random.Below(2) == 0 ? 1 : s.n_heads;
  s.row_bytes = unit * (1 + random.Below(random.Below(8) == 0 ? 40 : 9));
  s.n_pieces = random.Below(4) == 0 ? 1 + random.Below(4) : 1;
  s.offset = unit * random.Below(16 / unit);
  const auto gap = [&]() -> int64_t {
    return random.Below(3) == 0 ? unit * random.Below(3) : 0;
  };
  const int64_t piece = s.row_bytes + gap();
  s.block_size = random.Below(3) == 0 ? 1 + random.Below(20) : 0;
  const int64_t n_rows = s.block_size == 0 ? n_slots : s.block_size;
  int64_t size = 0;  // of a block
  switch (random.Below(3)) {
    case 0:
      s.piece_stride = piece;
      s.head_stride = piece * s.n_pieces + gap();
      s.row_stride = s.head_stride * s.n_heads + gap();
      size = s.row_stride * n_rows;
      break;
    case 1:
      s.piece_stride = piece;
      s.row_stride = piece * s.n_pieces + gap();
      s.head_stride = s.row_stride * n_rows + gap();
      size = s.head_stride * s.n_heads;
      break;
    default:
      s.row_stride = piece;
      s.piece_stride = piece * n_rows + gap();
      s.head_stride = s.piece_stride * s.n_pieces + gap();
      size = s.head_stride * s.n_heads;
  }
  if (random.Below(5) == 0) {  // rows from the end
    s.first = static_cast<size_t>((n_rows - 1) * s.row_stride);
    s.row_stride = -s.row_stride;
  }
  s.block_stride = s.block_size == 0 ? 0 : size + gap();
  const int64_t n_blocks =
      s.block_size == 0 ? 1 : (n_slots + s.block_size - 1) / s.block_size;
  s.bytes = static_cast<size_t>(size + (n_blocks - 1) * s.block_stride);
  return s;
}

// One plane: its memory, pages and keep lists.
struct Plane {
  std::vector<uint8_t> memory;
  std::vector<uint8_t> expected;
  std::vector<int32_t> table;
  std::vector<int32_t> keep;
  uint32_t n_keep;
};

// Ascending: dense or sparse, shifted by one or a few, or with holes in groups.
std::vector<int32_t> RandomKeep(uint32_t n_slots, uint32_t n_keep,
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

uint8_t* First(const Shape& s, std::vector<uint8_t>& memory) {
  return memory.data() + s.offset + s.first;
}

// What the oracle makes of a plane; its elements are the pieces' bytes.
void CompactByOracle(const Shape& s, Plane& plane) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = s.n_heads;
  view.block_size = s.block_size;
  view.block_table = plane.table.data();
  view.block_table_len = plane.table.size();
  for (uint32_t piece = 0; piece < s.n_pieces; ++piece) {
    view.k.data = Address(First(s, plane.expected) + piece * s.piece_stride);
    view.k.dtype = KVEVICT_DTYPE_OPAQUE;
    view.k.row_bytes = s.row_bytes;
    view.k.token_stride_bytes = s.row_stride;
    view.k.head_stride_bytes = s.head_stride;
    view.k.block_stride_bytes = s.block_stride;
    oracle_compact(&view, plane.keep.data(), plane.n_keep, s.n_lists);
  }
}

Plane MakePlane(const Shape& s, Random& random) {
  Plane plane;
  plane.memory.resize(s.offset + s.bytes);
  const uint64_t salt = random.Next();
  for (size_t i = 0; i < plane.memory.size(); ++i) {
    plane.memory[i] =
        static_cast<uint8_t>((i ^ salt) * 0x9E3779B97F4A7C15u >> 56);
  }
  plane.expected = plane.memory;
  if (s.block_size > 0) {
    plane.table.resize((s.n_slots + s.block_size - 1) / s.block_size);
    std::iota(plane.table.begin(), plane.table.end(), 0);
    for (uint32_t i = static_cast<uint32_t>(plane.table.size()); i > 1; --i) {
      std::swap(plane.table[i - 1], plane.table[random.Below(i)]);
    }
  }
  const uint32_t few = std::min(s.n_slots, 1 + random.Below(5));
  const uint32_t choices[] = {0, s.n_slots / 3, s.n_slots - few, s.n_slots,
                              random.Below(s.n_slots + 1)};
  plane.n_keep = choices[random.Below(5)];
  for (uint32_t list = 0; list < s.n_lists; ++list) {
    const auto keep = RandomKeep(s.n_slots, plane.n_keep, random);
    plane.keep.insert(plane.keep.end(), keep.begin(), keep.end());
  }
  CompactByOracle(s, plane);
  return plane;
}

cuda::GatherParams ParamsFor(const Shape& s, std::vector<Plane>& planes) {
  cuda::GatherParams p = {};
  p.rows = {s.row_stride,   s.head_stride, s.piece_stride,
            s.block_stride, s.block_size,  0};
  p.row_bytes = s.row_bytes;
  p.n_pieces = s.n_pieces;
  p.n_heads = s.n_heads;
  p.n_lists = s.n_lists;
  p.n_planes = static_cast<uint32_t>(planes.size());
  for (size_t i = 0; i < planes.size(); ++i) {
    p.planes[i] = {Address(First(s, planes[i].memory)),
                   Address(planes[i].table.data()),
                   Address(planes[i].keep.data()), planes[i].n_keep, 0};
  }
  return p;
}

void ExpectMoved(const std::vector<Plane>& planes, const char* what,
                 uint32_t turn) {
  for (const Plane& plane : planes) {
    ExpectSame(plane.memory, plane.expected, what, turn);
  }
}

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

void GatherByColumns(const Shape& s, std::vector<Plane> planes, uint32_t unit,
                     uint32_t turn) {
  const cuda::GatherParams p = ParamsFor(s, planes);
  unit = cuda::ColumnUnit(unit);
  Run(ColumnKernel(unit), {cuda::ColumnBlocks(p, unit), p.n_planes},
      cuda::kColumnThreads, p, Schedule(turn));
  ExpectMoved(planes, "by columns", turn);
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

void GatherByChunks(const Shape& s, std::vector<Plane> planes, uint32_t unit,
                    uint32_t turn) {
  cuda::GatherParams p = ParamsFor(s, planes);
  p.columns_per_block = cuda::ChunkColumns(p, unit);
  uint32_t n_keep = 0;
  for (const Plane& plane : planes) n_keep = std::max(n_keep, plane.n_keep);
  const uint64_t n_blocks = cuda::ChunkBlocks(p, unit, n_keep);
  if (n_blocks == 0) return;
  std::vector<uint32_t> tickets(cuda::ChunkTickets(n_blocks));
  p.tickets = Address(tickets.data());
  Run(ChunkKernel(unit), {static_cast<uint32_t>(n_blocks)}, cuda::kChunkThreads,
      p, Schedule(turn, 1 + turn / 4 % 4));
  ExpectMoved(planes, "by chunks", turn);
}

std::vector<Plane> MakePlanes(const Shape& s, Random& random) {
  std::vector<Plane> planes;
  const uint32_t n_planes = 1 + random.Below(3);
  while (planes.size() < n_planes) planes.push_back(MakePlane(s, random));
  return planes;
}

// More rows than a thread has on its way, twice; every unit.
void TestColumns() {
  Random random(TestSeed("gather_rows/columns"));
  for (uint32_t turn = 0; turn < Turns(60); ++turn) {
    const uint32_t unit = turn % 2 == 0 ? 16 : 1u << turn / 2 % 4;
    const Shape s = RandomShape(random, unit, 1 + random.Below(120));
    GatherByColumns(s, MakePlanes(s, random), unit, turn);
  }
}

// Three chunks and more of some columns; every unit that is possible.
void TestChunks() {
  Random random(TestSeed("gather_rows/chunks"));
  for (uint32_t turn = 0; turn < Turns(90); ++turn) {
    const uint32_t unit = 1u << turn % 5;
    const uint32_t n_slots =
        turn % 9 == 0 ? 5000 / unit : 1 + random.Below(300);
    const Shape s = RandomShape(random, unit, n_slots);
    std::vector<Plane> planes = MakePlanes(s, random);
    const uint32_t largest = cuda::GatherUnit(ParamsFor(s, planes));
    if (largest < unit) Fail("case %u: unit %u, not %u", turn, largest, unit);
    GatherByChunks(s, planes, turn % 3 == 0 ? unit : largest, turn);
  }
}

// Dense lists, of which every chunk has to wait for the one before: 48 rows
// each of 40 columns.
void TestNeighbours() {
  Random random(TestSeed("gather_rows/neighbours"));
  Shape s = {};
  s.n_slots = 500;
  s.n_heads = s.n_lists = s.n_pieces = 1;
  s.row_bytes = 640;
  s.row_stride = 640;
  s.bytes = 320000;
  for (uint32_t turn = 0; turn < 16; ++turn) {
    Plane plane = MakePlane(s, random);
    const uint32_t n_gone = 1 + random.Below(50);
    plane.n_keep = s.n_slots - n_gone;
    plane.keep.resize(plane.n_keep);
    std::iota(plane.keep.begin(), plane.keep.end(), n_gone);
    plane.expected = plane.memory;
    CompactByOracle(s, plane);
    GatherByChunks(s, {plane}, 16, turn);
  }
}

// Rows wider than a block: 300 columns of 16 bytes.
void TestWideRows() {
  Random random(TestSeed("gather_rows/wide"));
  Shape s = {};
  s.n_slots = 100;
  s.n_heads = s.n_lists = s.n_pieces = 1;
  s.row_bytes = 4800;
  s.row_stride = 4800;
  s.bytes = 480000;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    std::vector<Plane> planes = {MakePlane(s, random)};
    GatherByColumns(s, planes, 16, turn);
    GatherByChunks(s, planes, 16, turn);
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
  return p;
}

void TestRule() {
  // 36 layers of 8 heads of 128 16-bit elements go by columns, 28 of 2 do not.
  if (!cuda::GatherByColumns(ModelParams(36, 8), 16)) Fail("36 layers");
  if (cuda::GatherByColumns(ModelParams(28, 2), 16)) Fail("28 layers");
}

}  // namespace
}  // namespace kvevict

int main() {
  kvevict::TestColumns();
  kvevict::TestChunks();
  kvevict::TestNeighbours();
  kvevict::TestWideRows();
  kvevict::TestRule();
}
