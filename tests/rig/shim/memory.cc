// Memory, and the only context, which is current from the start as after
// cudaSetDevice().
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/rig/shim/driver.h"

namespace kvevict::shim {
namespace {

constexpr size_t kAlignment = 256;

std::vector<CUcontext>& Contexts() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

CUcontext Primary() {
  static char place;
  return reinterpret_cast<CUcontext>(&place);
}

void* At(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult QueueCopy(void* to, const void* from, size_t n_bytes,
                   CUstream stream) {
  return Queue(stream, [=] {
    std::memcpy(to, from, n_bytes);
    return CUDA_SUCCESS;
  });
}

}  // namespace

// ---- Contexts ----

CUresult Shim_cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice) {
  *out = Primary();
  return CUDA_SUCCESS;
}
CUresult Shim_cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult Shim_cuCtxGetCurrent(CUcontext* out) {
  *out = Contexts().empty() ? Primary() : Contexts().back();
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
  *out = 0;
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
  return CUDA_SUCCESS;
}
CUresult Shim_cuMemFree(CUdeviceptr memory) {
  std::free(At(memory));
  return CUDA_SUCCESS;
}
CUresult Shim_cuMemcpyHtoDAsync(CUdeviceptr to, const void* from,
                                size_t n_bytes, CUstream stream) {
  return QueueCopy(At(to), from, n_bytes, stream);
}
CUresult Shim_cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t n_bytes,
                                CUstream stream) {
  return QueueCopy(to, At(from), n_bytes, stream);
}
CUresult Shim_cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from,
                                size_t n_bytes, CUstream stream) {
  return QueueCopy(At(to), At(from), n_bytes, stream);
}
CUresult Shim_cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                              size_t n_bytes, CUstream stream) {
  return Queue(stream, [=] {
    std::memset(At(to), value, n_bytes);
    return CUDA_SUCCESS;
  });
}

}  // namespace kvevict::shim
