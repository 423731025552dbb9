#include "core/backend.h"

namespace kvevict {

Status FindBackend(kvevict_device device, const Backend** out) {
  switch (device) {
    case KVEVICT_DEVICE_CPU:
      *out = &kCpuBackend;
      return Status();
    case KVEVICT_DEVICE_CUDA:
#ifdef __wasi__
      return Unavailable("device cuda: this build has none");
#else
      *out = &kCudaBackend;
      return Status();
#endif
  }
  return InvalidArgument("device %d is no device", static_cast<int>(device));
}

}  // namespace kvevict
