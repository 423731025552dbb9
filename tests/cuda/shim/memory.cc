// Contexts and streams, of which there are no more than the library asks for, and
// memory. Copies are done when the call returns.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/cuda/shim/driver.h"

namespace kvevict::shim {
namespace {

constexpr size_t kAlignment = 256;

std::vector<CUcontext>& Contexts() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

// The one context there is.
CUcontext Primary() {
  static char place;
  return reinterpret_cast<CUcontext>(&place);
}

void* At(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

// ---- Contexts ----

CUresult Shim_cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice) {
  *out = Primary();
  return CUDA_SUCCESS;
}
CUresult Shim_cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult Shim_cuCtxGetCurrent(CUcontext* out) {
  *out = Contexts().empty() ? nullptr : Contexts().back();
  return CUDA_SUCCESS;
}
CUresult Shim_cuCtxPushCurrent(CUcontext context) {
  if (context != Primary()) return kInvalidContext;
  Contexts().push_back(context);
  return CUDA_SUCCESS;
}
CUresult Shim_cuCtxPopCurrent(CUcontext* out) {
  if (Contexts().empty()) return kInvalidContext;
  *out = Contexts().back();
  Contexts().pop_back();
  return CUDA_SUCCESS;
}
CUresult Shim_cuCtxGetDevice(CUdevice* out) {
  if (Contexts().empty()) return kInvalidContext;
  *out = 0;
  return CUDA_SUCCESS;
}

// ---- Streams ----

CUresult Shim_cuStreamCreate(CUstream* out, unsigned) {
  *out = reinterpret_cast<CUstream>(new char);
  ++TheState().n_live;
  return CUDA_SUCCESS;
}
CUresult Shim_cuStreamDestroy(CUstream stream) {
  delete reinterpret_cast<char*>(stream);
  --TheState().n_live;
  return CUDA_SUCCESS;
}
CUresult Shim_cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult Shim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  return CUDA_SUCCESS;
}
CUresult Shim_cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* out) {
  *out = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// ---- Memory ----

CUresult Shim_cuMemAlloc(CUdeviceptr* out, size_t n_bytes) {
  void* memory = nullptr;
  if (n_bytes == 0) return kInvalidValue;
  if (posix_memalign(&memory, kAlignment, n_bytes) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = reinterpret_cast<CUdeviceptr>(memory);
  ++TheState().n_live;
  return CUDA_SUCCESS;
}
CUresult Shim_cuMemFree(CUdeviceptr memory) {
  std::free(At(memory));
  --TheState().n_live;
  return CUDA_SUCCESS;
}
CUresult Shim_cuMemcpyHtoDAsync(CUdeviceptr to, const void* from,
                                size_t n_bytes, CUstream) {
  std::memcpy(At(to), from, n_bytes);
  return CUDA_SUCCESS;
}
CUresult Shim_cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t n_bytes,
                                CUstream) {
  std::memcpy(to, At(from), n_bytes);
  return CUDA_SUCCESS;
}
CUresult Shim_cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                              size_t n_bytes, CUstream) {
  std::memset(At(to), value, n_bytes);
  return CUDA_SUCCESS;
}

}  // namespace kvevict::shim
