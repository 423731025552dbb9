#include "core/backend.h"

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

}  // namespace kvevict
