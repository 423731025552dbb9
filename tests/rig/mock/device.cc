// Start, devices, error names.
#include <cstdio>

#include "tests/rig/mock/state.h"

namespace kvevict::mock {

// The programming guide's numbers. Unknown minor numbers count as those below
// them.
int SharedBytesOptIn(int compute_capability) {
  if (compute_capability < 75) return 96 << 10;
  if (compute_capability < 80) return 64 << 10;
  if (compute_capability < 86 || compute_capability == 87) return 163 << 10;
  if (compute_capability < 90) return 99 << 10;
  return compute_capability < 120 ? 227 << 10 : 99 << 10;
}

namespace {

const char* NameOf(CUresult result) {
  switch (result) {
#define KVEVICT_MOCK_ROW(name, value) \
  case name:                          \
    return #name;
    KVEVICT_MOCK_RESULTS(KVEVICT_MOCK_ROW)
#undef KVEVICT_MOCK_ROW
    default:
      return nullptr;
  }
}

}  // namespace

KVEVICT_MOCK_API CUresult cuInit(unsigned flags) {
  KVEVICT_MOCK_CALL(kBeforeInit);
  if (flags != 0) return call.Misuse(CUDA_ERROR_INVALID_VALUE, "flags");
  if (call.state.settings.n_devices == 0) return CUDA_ERROR_NO_DEVICE;
  call.state.initialised = true;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDriverGetVersion(int* out) {
  KVEVICT_MOCK_CALL(kBeforeInit);
  *out = call.state.settings.driver_version;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuGetErrorName(CUresult error, const char** out) {
  *out = NameOf(error);
  return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDeviceGetCount(int* out) {
  KVEVICT_MOCK_CALL(kNothing);
  *out = call.state.settings.n_devices;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDeviceGet(CUdevice* out, int ordinal) {
  KVEVICT_MOCK_CALL(kNothing);
  if (ordinal < 0 || ordinal >= call.state.settings.n_devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *out = ordinal;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDeviceGetName(char* out, int n_bytes,
                                          CUdevice device) {
  KVEVICT_MOCK_CALL(kNothing);
  if (device < 0 || device >= call.state.settings.n_devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  std::snprintf(out, static_cast<size_t>(n_bytes), "Mock GPU %d", device);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDeviceGetAttribute(int* out, int attribute,
                                               CUdevice device) {
  KVEVICT_MOCK_CALL(kNothing);
  if (device < 0 || device >= call.state.settings.n_devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const int compute_capability = call.state.settings.compute_capability;
  switch (attribute) {
    case 1:  // MAX_THREADS_PER_BLOCK
      *out = 1024;
      return CUDA_SUCCESS;
    case 8:  // MAX_SHARED_MEMORY_PER_BLOCK
      *out = 48 << 10;
      return CUDA_SUCCESS;
    case 88:  // PAGEABLE_MEMORY_ACCESS
      *out = call.state.settings.host_memory ? 1 : 0;
      return CUDA_SUCCESS;
    case 10:  // WARP_SIZE
      *out = 32;
      return CUDA_SUCCESS;
    case 16:  // MULTIPROCESSOR_COUNT
      *out = 4;
      return CUDA_SUCCESS;
    case 75:  // COMPUTE_CAPABILITY_MAJOR
      *out = compute_capability / 10;
      return CUDA_SUCCESS;
    case 76:  // COMPUTE_CAPABILITY_MINOR
      *out = compute_capability % 10;
      return CUDA_SUCCESS;
    case 97:  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
      *out = SharedBytesOptIn(compute_capability);
      return CUDA_SUCCESS;
    default:
      return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                         "attribute " + std::to_string(attribute) +
                             " is not known to the mock");
  }
}

}  // namespace kvevict::mock
