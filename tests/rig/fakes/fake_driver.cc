// A libcuda that can be opened and asked about its GPUs, and no more. Built once
// per fault, which the FAKE_ constants choose.
#include <cstdio>

#include "cuda/driver.h"

using namespace kvevict::cuda;  // NOLINT

static constexpr int kComputeCapabilities[] = {FAKE_SM};  // one per GPU

extern "C" {

CUresult cuInit(unsigned) { return static_cast<CUresult>(FAKE_INIT); }

// The toolkit's stub answers nothing.
static constexpr bool kIsStub = FAKE_INIT == CUDA_ERROR_STUB_LIBRARY;

CUresult cuDriverGetVersion(int* out) {
  if (kIsStub) return CUDA_ERROR_STUB_LIBRARY;
  *out = FAKE_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char** out) {
  if (kIsStub) return CUDA_ERROR_STUB_LIBRARY;
  *out = result == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_OTHER";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* out) {
  *out = FAKE_DEVICES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* out, int ordinal) {
  *out = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* out, int n_bytes, CUdevice) {
  std::snprintf(out, n_bytes, "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute attribute,
                              CUdevice device) {
  const int sm = kComputeCapabilities[device];
  *out = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? sm / 10
                                                                   : sm % 10;
  return CUDA_SUCCESS;
}

}  // extern "C"
