// Planes of rows in any layout, and the oracle's results for them.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_PLANES_H_
#define KVEVICT_TESTS_CUDA_KERNELS_PLANES_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cuda/kernels/gather_rows.h"
#include "tests/cuda/kernels/launch.h"
#include "tests/oracle/compact.h"

namespace kvevict {

// The layout of the rows of all planes of a launch.
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
  uint32_t keep_gap;    // 0: lists have one count, and heads one table
  size_t bytes;
  size_t first;   // slot 0, head 0
  size_t offset;  // of the lowest byte from a multiple of 16
  bool is_ring;   // of n_slots
  uint32_t ring_first;
  bool has_addresses;  // of blocks
};

// Rows that allow units of `unit` bytes, in one of the orders of caches: [slots,
// heads, pieces], [heads, slots, pieces], [heads, pieces, slots].
inline Shape RandomLayout(Random& random, uint32_t unit, uint32_t n_slots,
                          const Shape& like) {
  Shape s = like;
  s.n_slots = n_slots;
  s.first = 0;
  s.offset = unit * random.Below(16 / unit);
  const auto gap = [&]() -> int64_t {
    return random.Below(3) == 0 ? unit * random.Below(3) : 0;
  };
  const int64_t piece = s.row_bytes + gap();
  s.block_size = random.Below(3) == 0 ? 1 + random.Below(20) : 0;
  s.is_ring = n_slots > 0 && random.Below(4) == 0;
  s.ring_first = s.is_ring ? random.Below(n_slots) : 0;
  s.has_addresses = s.block_size > 0 && random.Below(3) == 0;
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
  // Blocks with addresses begin at multiples of 16.
  if (s.has_addresses) s.block_stride = (s.block_stride + 15) / 16 * 16;
  const int64_t n_blocks =
      s.block_size == 0 ? 1 : (n_slots + s.block_size - 1) / s.block_size;
  s.bytes = static_cast<size_t>(size + (n_blocks - 1) * s.block_stride);
  return s;
}

// The same for rows of any kind.
inline Shape RandomShape(Random& random, uint32_t unit, uint32_t n_slots) {
  Shape s = {};
  s.n_heads = 1 + random.Below(3);
  s.n_lists = random.Below(2) == 0 ? 1 : s.n_heads;
  s.keep_gap = random.Below(3) == 0 ? 1 + random.Below(9) : 0;
  s.row_bytes = unit * (1 + random.Below(random.Below(8) == 0 ? 40 : 9));
  s.n_pieces = random.Below(4) == 0 ? 1 + random.Below(4) : 1;
  return RandomLayout(random, unit, n_slots, s);
}

// The memory and pages of a plane.
struct PlaneMemory {
  std::vector<uint8_t> memory;
  std::vector<uint8_t> expected;
  std::vector<int32_t> table;
  uint32_t table_head_stride = 0;
  std::vector<uint64_t> addresses;  // see BaseOf()
};

// One plane, its keep lists, and the other plane that its rows go to, if any.
struct Plane : PlaneMemory {
  PlaneMemory to;
  uint32_t first_slot;
  std::vector<int32_t> keep;  // [n_lists, keep_stride]
  uint32_t keep_stride;
  uint32_t n_keep;               // of any list, the most
  std::vector<uint32_t> counts;  // [n_lists]
  std::vector<int32_t> words;    // see ParamsFor()
};

inline uint8_t* First(const Shape& s, std::vector<uint8_t>& memory) {
  return memory.data() + s.offset + s.first;
}

// A view of one piece of one head's rows.
inline kvevict_view PieceView(const Shape& s, PlaneMemory& plane, uint32_t head,
                              uint32_t piece) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 1;
  view.block_size = s.block_size;
  view.ring_slots = s.is_ring ? s.n_slots : 0;
  view.ring_first = s.ring_first;
  view.block_table = plane.table.data() + head * plane.table_head_stride;
  view.block_table_len = plane.table.size();
  view.k.data = Address(First(s, plane.expected) + head * s.head_stride +
                        piece * s.piece_stride);
  view.k.dtype = KVEVICT_DTYPE_OPAQUE;
  view.k.row_bytes = s.row_bytes;
  view.k.token_stride_bytes = s.row_stride;
  view.k.head_stride_bytes = s.head_stride;
  view.k.block_stride_bytes = s.block_stride;
  return view;
}

// Compacts a plane by the oracle; its elements are the pieces' bytes.
inline void CompactByOracle(const Shape& s, const Shape* to, Plane& plane) {
  for (uint32_t head = 0; head < s.n_heads; ++head) {
    const uint32_t list = s.n_lists == 1 ? 0 : head;
    kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
    keep.n_lists = 1;
    keep.slots = plane.keep.data() + size_t{list} * plane.keep_stride;
    keep.count = plane.counts[list];
    for (uint32_t piece = 0; piece < s.n_pieces; ++piece) {
      const kvevict_view view = PieceView(s, plane, head, piece);
      const kvevict_view to_view =
          to == nullptr ? view : PieceView(*to, plane.to, head, piece);
      oracle_compact_to(&view, &to_view, plane.first_slot, &keep);
    }
  }
}

// Returns none, a few or many of n_slots, or all.
inline uint32_t RandomCount(uint32_t n_slots, Random& random) {
  const uint32_t few = std::min(n_slots, 1 + random.Below(5));
  const uint32_t choices[] = {0, n_slots / 3, n_slots - few, n_slots,
                              random.Below(n_slots + 1)};
  return choices[random.Below(5)];
}

inline PlaneMemory MakeMemory(const Shape& s, Random& random) {
  PlaneMemory plane;
  plane.memory.resize(s.offset + s.bytes);
  const uint64_t salt = random.Next();
  for (size_t i = 0; i < plane.memory.size(); ++i) {
    plane.memory[i] =
        static_cast<uint8_t>((i ^ salt) * 0x9E3779B97F4A7C15u >> 56);
  }
  plane.expected = plane.memory;
  if (s.block_size > 0) {
    const uint32_t n_blocks = (s.n_slots + s.block_size - 1) / s.block_size;
    if (s.keep_gap > 0) plane.table_head_stride = n_blocks;
    for (uint32_t t = 0; t < (s.keep_gap > 0 ? s.n_heads : 1); ++t) {
      std::vector<int32_t> table(n_blocks);
      std::iota(table.begin(), table.end(), 0);
      for (uint32_t i = n_blocks; i > 1; --i) {
        std::swap(table[i - 1], table[random.Below(i)]);
      }
      plane.table.insert(plane.table.end(), table.begin(), table.end());
    }
  }
  return plane;
}

// make_list(n_slots, n_keep, random) makes a list. Lists have n_keep slots; with
// s.keep_gap they lie apart and have counts of their own up to n_keep. In place
// they list slots from first_slot on.
template <class MakeList>
Plane MakePlane(const Shape& s, uint32_t n_keep, Random& random,
                const MakeList& make_list, uint32_t first_slot = 0,
                const Shape* to = nullptr) {
  Plane plane = {};
  static_cast<PlaneMemory&>(plane) = MakeMemory(s, random);
  if (to != nullptr) plane.to = MakeMemory(*to, random);
  plane.first_slot = first_slot;
  const uint32_t first_listed = to == nullptr ? first_slot : 0;
  plane.n_keep = n_keep;
  plane.keep_stride = s.keep_gap > 0 ? s.n_slots + s.keep_gap : n_keep;
  plane.keep.assign(size_t{s.n_lists} * plane.keep_stride + 1, INT32_MAX);
  for (uint32_t list = 0; list < s.n_lists; ++list) {
    const uint32_t count = s.keep_gap > 0 ? random.Below(n_keep + 1) : n_keep;
    plane.counts.push_back(count);
    const std::vector<int32_t> keep =
        make_list(s.n_slots - first_listed, count, random);
    std::transform(keep.begin(), keep.end(),
                   plane.keep.begin() + size_t{list} * plane.keep_stride,
                   [&](int32_t slot) {
                     return slot + static_cast<int32_t>(first_listed);
                   });
  }
  CompactByOracle(s, to, plane);
  return plane;
}

inline cuda::RowLayout LayoutOf(const Shape& s, const PlaneMemory& plane) {
  cuda::RowLayout rows = {};
  rows.row_stride = s.row_stride;
  rows.head_stride = s.head_stride;
  rows.element_stride = s.piece_stride;
  rows.block_stride = s.block_stride;
  rows.block_size = s.block_size;
  rows.table_head_stride = plane.table_head_stride;
  if (!s.is_ring && !s.has_addresses) return rows;
  rows.far = cuda::kFar;
  if (s.block_size > 0) rows.far |= cuda::kFarIds;
  if (s.has_addresses) {
    rows.far |= cuda::kFarAddresses;
    rows.block_stride = static_cast<int64_t>((s.offset + s.first) % 16);
  }
  if (s.block_size == 0) rows.block_size = s.n_slots;
  rows.ring_slots = s.is_ring ? s.n_slots : 0;
  rows.ring_first = s.ring_first;
  return rows;
}

// The argument of a launch: slot 0 of head 0, or the table of blocks' addresses.
inline uint64_t BaseOf(const Shape& s, PlaneMemory& plane) {
  const uint64_t first = Address(First(s, plane.memory));
  if (!s.has_addresses) return first;
  const uint32_t n_blocks = (s.n_slots + s.block_size - 1) / s.block_size;
  const uint64_t lowest = first / 16 * 16;
  plane.addresses.clear();
  for (uint32_t id = 0; id < n_blocks; ++id) {
    plane.addresses.push_back(lowest +
                              id * static_cast<uint64_t>(s.block_stride));
  }
  return Address(plane.addresses.data());
}

// The words of all planes side by side, since a launch has one address of each
// kind. What lies between is no slot, block or count.
class WordArena {
 public:
  template <class T>
  int32_t Add(const std::vector<T>& words) {
    words_.push_back(INT32_MIN);
    const auto at = static_cast<int32_t>(words_.size());
    for (const T word : words) words_.push_back(static_cast<int32_t>(word));
    return at;
  }
  std::vector<int32_t> Take() {
    words_.push_back(INT32_MIN);
    return std::move(words_);
  }

 private:
  std::vector<int32_t> words_;
};

// The first plane holds what the parameters point to.
inline cuda::GatherParams ParamsFor(const Shape& s, std::vector<Plane>& planes,
                                    const Shape* to = nullptr) {
  cuda::GatherParams p = {};
  const auto target = [&](size_t i) -> PlaneMemory& {
    return to == nullptr ? planes[i] : planes[i].to;
  };
  WordArena words;
  p.rows = LayoutOf(s, planes[0]);
  p.to = LayoutOf(to == nullptr ? s : *to, target(0));
  p.row_bytes = s.row_bytes;
  p.n_pieces = s.n_pieces;
  p.n_heads = s.n_heads;
  p.n_lists = s.n_lists;
  p.n_planes = static_cast<uint32_t>(planes.size());
  for (size_t i = 0; i < planes.size(); ++i) {
    p.planes[i] = {BaseOf(s, planes[i]),
                   BaseOf(to == nullptr ? s : *to, target(i)),
                   words.Add(planes[i].keep),
                   planes[i].n_keep,
                   0,
                   planes[i].first_slot,
                   words.Add(planes[i].table),
                   words.Add(target(i).table)};
    if (s.keep_gap == 0) continue;
    p.keep_stride = planes[i].keep_stride;
    p.planes[i].first_count = words.Add(planes[i].counts);
  }
  planes[0].words = words.Take();
  p.keep = p.tables = p.to_tables = Address(planes[0].words.data());
  if (s.keep_gap != 0) p.counts = {Address(planes[0].words.data()), 1, 0};
  return p;
}

inline void ExpectMoved(const std::vector<Plane>& planes, const char* what,
                        uint32_t turn) {
  for (const Plane& plane : planes) {
    ExpectSame(plane.memory, plane.expected, what, turn);
    ExpectSame(plane.to.memory, plane.to.expected, what, turn);
  }
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_PLANES_H_
