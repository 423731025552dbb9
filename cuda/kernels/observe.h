// Arguments and launch shape of observe.cu.
#ifndef KVEVICT_CUDA_KERNELS_OBSERVE_H_
#define KVEVICT_CUDA_KERNELS_OBSERVE_H_

#include "params.h"

namespace kvevict::cuda {

struct ObserveParams {
  static constexpr uint32_t kMaxLayers = 128;
  uint64_t rings;  // [layers, ring_rows, n_heads, row elements], packed
  // Address of a u32 with the position of row 0, read when the kernel runs; 0:
  // it is first_position.
  uint64_t position_address;
  int64_t from_row_stride;
  int64_t from_head_stride;
  int64_t from_element_stride;
  uint32_t first_position;  // added to what is read
  uint32_t n_rows;          // <= ring_rows
  uint32_t n_heads;
  uint32_t n_elements;     // per row and head
  uint32_t element_bytes;  // of the rings
  uint32_t rounds_to;      // 0; or kF16 or kBF16: rows are f32, and unit is 2
  uint32_t ring_rows;      // position p goes to row p % ring_rows
  uint32_t unit;           // bytes moved at a time: ObserveUnit()
  uint32_t n_layers;
  uint64_t from[kMaxLayers];  // row 0 of those to copy, head 0
};
static_assert(sizeof(ObserveParams) <= 4096);

// Grid (ObserveBlocks(), n_rows, n_layers).
constexpr uint32_t kObserveThreads = 128;

constexpr bool QueriesArePacked(const ObserveParams& p) {
  return p.from_element_stride == static_cast<int64_t>(p.element_bytes);
}

// The largest power of two, at most 16, that divides every address and length.
constexpr uint32_t ObserveUnit(const ObserveParams& p) {
  const uint64_t run =
      uint64_t{p.element_bytes} * (QueriesArePacked(p) ? p.n_elements : 1);
  uint64_t all =
      16 | p.rings | run | static_cast<uint64_t>(p.from_row_stride) |
      static_cast<uint64_t>(p.from_head_stride) |
      (QueriesArePacked(p) ? 0 : static_cast<uint64_t>(p.from_element_stride));
  for (uint32_t l = 0; l < p.n_layers; ++l) all |= p.from[l];
  return static_cast<uint32_t>(all & (~all + 1));
}

// A thread copies one unit of a row, or rounds an element.
constexpr uint32_t ObserveBlocks(const ObserveParams& p) {
  const uint64_t units =
      uint64_t{p.n_heads} * p.n_elements * p.element_bytes / p.unit;
  return static_cast<uint32_t>((units + kObserveThreads - 1) / kObserveThreads);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_OBSERVE_H_
