// The position that a slot holds, and the slot of a position:
// core/sequence/sequence.h on the device.
#ifndef KVEVICT_CUDA_KERNELS_SLOTS_CUH_
#define KVEVICT_CUDA_KERNELS_SLOTS_CUH_

#include "counts.cuh"

namespace kvevict::cuda {

KV_DEVICE uint64_t KeptList(const SlotPositions& slots, uint32_t list) {
  return slots.kept + uint64_t{list} * slots.n_kept * sizeof(int32_t);
}

KV_DEVICE int32_t PositionOf(const SlotPositions& slots, const CountTable& kept,
                             uint32_t list, uint32_t slot) {
  slot += slots.first_slot;
  const uint32_t n_kept = CountOf(kept, slots.first_count, list, slots.n_kept);
  if (slot >= n_kept) {
    return static_cast<int32_t>(slots.tail_position + (slot - n_kept));
  }
  return LoadGlobal<int32_t>(KeptList(slots, list) +
                             uint64_t{slot} * sizeof(int32_t));
}

// The slot of `position` >= 0 among n_tokens, or n_tokens if none holds it.
KV_DEVICE uint32_t SlotOf(const SlotPositions& slots, const CountTable& counts,
                          uint32_t list, uint32_t n_tokens, int32_t position) {
  const uint32_t p = static_cast<uint32_t>(position);
  const uint32_t n_kept =
      CountOf(counts, slots.first_count, list, slots.n_kept);
  // Slots before the first wrap around, and so are beyond the last too.
  const auto among = [&](uint32_t slot) {
    const uint32_t i = slot - slots.first_slot;
    return i < n_tokens ? i : n_tokens;
  };
  if (p >= slots.tail_position) {
    return among(n_kept + (p - slots.tail_position));
  }
  const uint64_t kept = KeptList(slots, list);
  // index of the first listed position >= p is in [begin, end]
  uint32_t begin = 0;
  uint32_t end = n_kept;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    const int32_t at = LoadGlobal<int32_t>(kept + uint64_t{middle} * 4);
    if (at == position) return among(middle);
    if (at < position) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return n_tokens;
}

// The first of n_tokens slots whose position is `position` or later, or
// n_tokens.
KV_DEVICE uint32_t FirstFrom(const SlotPositions& slots,
                             const CountTable& counts, uint32_t list,
                             uint32_t n_tokens, uint32_t position) {
  const uint32_t n_kept =
      CountOf(counts, slots.first_count, list, slots.n_kept);
  const uint64_t kept = KeptList(slots, list);
  uint64_t begin = 0;
  if (position >= slots.tail_position) {
    begin = uint64_t{n_kept} + (position - slots.tail_position);
  } else {  // the first listed position from it on is in [begin, end]
    uint64_t end = n_kept;
    while (begin < end) {
      const uint64_t middle = begin + (end - begin) / 2;
      if (LoadGlobal<uint32_t>(kept + middle * 4) < position) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
  }
  if (begin <= slots.first_slot) return 0;
  begin -= slots.first_slot;
  return begin < n_tokens ? static_cast<uint32_t>(begin) : n_tokens;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_SLOTS_CUH_
