// Keeps the queries of the last tokens: copies rows of any strides to a packed
// ring, or rounds f32 to the ring's elements.
#include "observe.h"

#include "device.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint32_t RingRow(const ObserveParams& p, uint32_t row) {
  uint32_t position = p.first_position + row;
  if (p.position_address != 0) {
    position += LoadGlobal<uint32_t>(p.position_address);
  }
  return position % p.ring_rows;
}

template <class Unit>
KV_DEVICE void CopyUnit(uint64_t from, uint64_t to) {
  StoreGlobal(to, LoadGlobal<Unit>(from));
}

// Rounded to the nearest, halves to even.
template <int kDType>
KV_DEVICE void RoundElement(uint64_t from, uint64_t to) {
  constexpr uint16_t kNaN = kDType == kF16 ? 0x7e00 : 0x7fc0;
  const float v = LoadGlobal<float>(from);
  StoreGlobal(to, v == v ? static_cast<uint16_t>(FromFloat<kDType>(v)) : kNaN);
}

}  // namespace

// Grid (units of a row / 128, n_rows, n_layers). A thread owns one unit. There
// are at most `ring_rows` rows, so no two go to the same place.
KV_KERNEL(observe_rows, ObserveParams, kObserveThreads, 1) {
  const uint64_t head_bytes = uint64_t{p.n_elements} * p.element_bytes;
  const uint64_t row_bytes = p.n_heads * head_bytes;
  const uint64_t byte =
      (uint64_t{blockIdx.x} * kObserveThreads + threadIdx.x) * p.unit;
  if (byte >= row_bytes) return;
  const uint32_t row = blockIdx.y;
  const uint64_t in_head = byte % head_bytes;
  const uint64_t from =
      p.from[blockIdx.z] + static_cast<uint64_t>(row * p.from_row_stride) +
      static_cast<uint64_t>(static_cast<int64_t>(byte / head_bytes) *
                            p.from_head_stride) +
      static_cast<uint64_t>(static_cast<int64_t>(in_head / p.element_bytes) *
                            p.from_element_stride) +
      in_head % p.element_bytes;
  const uint64_t ring =
      p.rings + uint64_t{blockIdx.z} * p.ring_rows * row_bytes;
  const uint64_t to = ring + RingRow(p, row) * row_bytes + byte;
  if (p.rounds_to == kF16) return RoundElement<kF16>(from, to);
  if (p.rounds_to == kBF16) return RoundElement<kBF16>(from, to);
  switch (p.unit) {
    case 16:
      return CopyUnit<Bytes16>(from, to);
    case 8:
      return CopyUnit<uint64_t>(from, to);
    case 4:
      return CopyUnit<uint32_t>(from, to);
    case 2:
      return CopyUnit<uint16_t>(from, to);
    default:
      return CopyUnit<uint8_t>(from, to);
  }
}

}  // namespace kvevict::cuda
