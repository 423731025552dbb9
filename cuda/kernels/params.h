// What arguments of kernels are made of. The arguments of a kernel are a struct in its
// own header, passed by value, at most 4,096 bytes. Both the host compiler and NVRTC
// read these headers. Addresses are device addresses.
//
// Layers of a model share a launch: what they have in common (strides, head
// counts) is stored once, and what differs in an array with one entry per
// layer. If an array has no room for more layers, or layouts differ, there is
// another launch.
#ifndef KVEVICT_CUDA_KERNELS_PARAMS_H_
#define KVEVICT_CUDA_KERNELS_PARAMS_H_

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <cstdint>
#endif

#include "core/codes.h"

namespace kvevict::cuda {

// The numbers of kvevict_dtype.
#define KVEVICT_DTYPE(Name, text, id, ...) constexpr int k##Name = id;
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE

// The shared memory of a multiprocessor. sm is 80 for compute capability 8.0.
constexpr uint32_t SharedKilobytes(uint32_t sm) {
  return sm < 75                ? 96
         : sm < 80              ? 64
         : sm == 80 || sm == 87 ? 164
         : sm < 90 || sm >= 120 ? 100
                                : 228;
}

// The floating-point dtypes, a bit for each.
enum : uint32_t {
  kPlainDTypes = 0
#define KVEVICT_DTYPE(Name, text, id, bytes, ...) | (bytes > 1 ? 1u << id : 0)
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

// Those with two elements to a byte. GPUs find a bit faster than a row of facts.
enum : uint32_t {
  kNibbleDTypes = 0
#define KVEVICT_DTYPE(Name, text, id, bytes, block, block_bytes, ...) \
  | (block > block_bytes ? 1u << id : 0)
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
};

struct DTypeFacts {
  Packing packing;
  bool minimum;  // rows may have one
  CodeNumbers codes;
};
constexpr DTypeFacts FactsOf(int dtype) {
#define KVEVICT_DTYPE(Name, text, id, bytes, block, block_bytes, scale,  \
                      minimum, move, score, rotate, packing, codes, ...) \
  if (dtype == id) {                                                     \
    return {Packing::k##packing, minimum != 0, codes};                   \
  }
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  return {Packing::kNumbers, false, NoCodes()};
}
constexpr bool IsNibbles(int dtype) {
  return (kNibbleDTypes >> dtype & 1) != 0;
}
// The elements in 16 bytes of a row, if elements are contiguous and in order.
constexpr uint32_t PerLoad(int dtype) {
  if (dtype == kF32) return 4;
  if ((kPlainDTypes >> dtype & 1) != 0) return 8;
  return FactsOf(dtype).packing == Packing::kPairs ? 32 : 16;
}

// The layout of a plane's rows. Slot s, head h, element e is at
//   contiguous  base + s * row_stride + h * head_stride + e * element_stride
//   paged       base + table[s / block_size] * block_stride
//                    + (s % block_size) * row_stride + ...
// In groups element e is at (e / group_elems) * group_stride
//                    + (e % group_elems) * element_stride of its row.
// Far rows are paged. With addresses `base` is the address of the table of
// block addresses, and block_stride is the offset of slot 0, head 0 in a block.
constexpr uint32_t kFar = 1, kFarIds = 2, kFarAddresses = 4;
struct RowLayout {
  int64_t row_stride;
  int64_t head_stride;
  int64_t element_stride;
  int64_t block_stride;
  uint32_t block_size;  // 0: contiguous
  // head h's table is table + h * this; 0: all share one
  uint32_t table_head_stride;
  int64_t group_stride;
  uint32_t group_elems;  // 0: one group
  // kFar, with kFarIds if there is a block table and kFarAddresses if
  // blocks have addresses; 0: as above.
  uint32_t far;
  // Far rows: slot s is row (s + ring_first) % ring_slots; 0: row s.
  uint32_t ring_slots;
  uint32_t ring_first;
};
static_assert(sizeof(RowLayout) == 64);

// Scales or minima: a number for each row of codes, in the rows' blocks, or one
// for a head or for all. With groups there are rows of packed numbers, one for
// each element, which groups of rows share.
struct RowNumbers {
  uint64_t base;  // slot 0, head 0; 0: none
  int64_t row_stride;
  int64_t head_stride;
  int64_t block_stride;  // as in RowLayout
  uint32_t far;
  uint32_t is_constant;  // at base + head * head_stride
  uint32_t dtype;        // floating-point
  // Slots of a group; 0: one number per row, or constant.
  uint32_t group_tokens;
};
static_assert(sizeof(RowNumbers) == 48);

// The last rows of a cache, packed and in no blocks. The rows before them are
// quantized.
struct RecentRows {
  uint64_t base;  // slot `first`, head 0; 0: there are none
  int64_t row_stride;
  int64_t head_stride;
  uint32_t first;
  uint32_t dtype;  // floating-point
};
static_assert(sizeof(RecentRows) == 32);

// Rows of keys or values whose elements are read.
struct CacheRows {
  RowLayout layout;
  uint32_t dtype;     // of kvevict_dtype
  uint32_t head_dim;  // elements that are read
  uint32_t lanes;     // threads that share a row: LanesOfRow()
  // Bytes between the 16-byte loads of a row, which are aligned to 16 and
  // filled with elements: 16, or the stride of groups. 0: rows have no such
  // loads.
  uint32_t wide;
  RowNumbers scale;    // of quantized rows: factor of codes
  RowNumbers minimum;  // added to the product
  RecentRows recent;
  uint32_t n_elements;  // elements of a row
  uint32_t reserved;
};
static_assert(sizeof(CacheRows) == 216);

// The number of a warp's threads that share a row: a power of two, enough to
// load it at once.
constexpr uint32_t LanesOfRow(uint32_t loads_per_row) {
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < loads_per_row) lanes *= 2;
  return lanes;
}

// Counts of lists, u32: that of list i of a layer is at base + 4 * (first + i *
// step), where `first` is the layer's own. base 0: the lists of a layer are
// equally long, and the layer has the count.
struct CountTable {
  uint64_t base;
  uint32_t step;
  uint32_t reserved;
};
static_assert(sizeof(CountTable) == 16);

// The positions that the slots of a layer hold: the first n_kept are listed as
// i32 [n_lists, n_kept] at `kept`, and the rest count up from tail_position. If
// lists differ n_kept is the largest, and a CountTable has the counts. Slots
// are counted from first_slot on.
struct SlotPositions {
  uint64_t kept;
  uint32_t n_kept;
  uint32_t tail_position;
  int32_t first_count;
  uint32_t first_slot;
};
static_assert(sizeof(SlotPositions) == 24);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_PARAMS_H_
