#include "core/backend.h"

#include "core/policy.h"

namespace kvevict {

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
  return SignalOf(policy).Ranks() ? policy.scope : KVEVICT_SCOPE_LAYER;
}

uint32_t ListsPerLayer(const kvevict_geometry& geometry,
                       const kvevict_policy& policy) {
  return EffectiveScope(policy) == KVEVICT_SCOPE_KV_HEAD ? geometry.n_kv_heads
                                                         : 1;
}

}  // namespace kvevict
