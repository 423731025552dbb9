#include "core/backend.h"

#include <algorithm>

#include "core/policy.h"

namespace kvevict {

int32_t SlotPositions::PositionOf(uint32_t list, uint32_t slot) const {
  if (slot < n_kept) return kept[uint64_t{list} * n_kept + slot];
  return static_cast<int32_t>(tail_position + (slot - n_kept));
}

int64_t SlotPositions::SlotOf(uint32_t list, int32_t position,
                              uint32_t n_tokens) const {
  if (position >= static_cast<int64_t>(tail_position)) {
    const int64_t slot = int64_t{position} - tail_position + n_kept;
    return slot < n_tokens ? slot : -1;
  }
  const int32_t* begin = kept + uint64_t{list} * n_kept;
  const int32_t* end = begin + n_kept;
  const int32_t* found = std::lower_bound(begin, end, position);
  return found != end && *found == position ? found - begin : -1;
}

Status FindBackend(kvevict_device device, const Backend** out) {
  switch (device) {
    case KVEVICT_DEVICE_CPU:
      *out = &kCpuBackend;
      return Status();
    case KVEVICT_DEVICE_CUDA:
      *out = &kCudaBackend;
      return Status();
  }
  return InvalidArgument("device %d is no device", static_cast<int>(device));
}

kvevict_scope EffectiveScope(const kvevict_policy& policy) {
  return RanksTokens(SignalOf(policy)) ? policy.scope : KVEVICT_SCOPE_LAYER;
}

uint32_t ListsPerLayer(const kvevict_geometry& geometry,
                       const kvevict_policy& policy) {
  return EffectiveScope(policy) == KVEVICT_SCOPE_KV_HEAD ? geometry.n_kv_heads
                                                         : 1;
}

}  // namespace kvevict
