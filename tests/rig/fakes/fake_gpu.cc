#include "tests/rig/fakes/fake_gpu.h"

#include <cstring>
#include <utility>

namespace kvevict::cuda {

FakeGpu gpu;

namespace {

CUresult LoadImage(const void* image, uintptr_t* out) {
  gpu.n_misuses += gpu.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  ++gpu.n_loads;
  gpu.images.emplace_back(static_cast<const char*>(image));
  gpu.n_misuses += !gpu.live_images.insert(gpu.images.back()).second;
  *out = gpu.images.size();
  return CUDA_SUCCESS;
}

CUresult UnloadImage(uintptr_t handle) {
  gpu.n_misuses += gpu.live_images.erase(gpu.images[handle - 1]) != 1;
  return CUDA_SUCCESS;
}

void AddDevice(Driver& d) {
  d.cuGetErrorName = [](CUresult, const char** out) {
    *out = "CUDA_ERROR_X";
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetCount = [](int* out) { return *out = 1, CUDA_SUCCESS; };
  d.cuDeviceGet = [](CUdevice* out, int) { return *out = 0, CUDA_SUCCESS; };
  d.cuDeviceGetName = [](char*, int, CUdevice) { return CUDA_SUCCESS; };
  d.cuDeviceGetAttribute = [](int* out, CUdevice_attribute attribute,
                              CUdevice) {
    *out = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
               ? gpu.sm / 10
               : gpu.sm % 10;
    return CUDA_SUCCESS;
  };
  d.cuCtxGetDevice = [](CUdevice* out) { return *out = 0, CUDA_SUCCESS; };
}

void AddStreams(Driver& d) {
  d.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    std::swap(*mode, gpu.mode);
    return CUDA_SUCCESS;
  };
  d.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* out) {
    return *out = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
  };
}

void AddModules(Driver& d) {
  d.cuFuncSetAttribute = [](CUfunction, CUfunction_attribute attribute,
                            int value) {
    gpu.n_misuses +=
        attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    gpu.max_shared = value;
    return CUDA_SUCCESS;
  };
  d.cuFuncGetAttribute = [](int* out, CUfunction_attribute, CUfunction) {
    ++gpu.n_functions_loaded;
    return *out = 32, CUDA_SUCCESS;
  };
  d.cuModuleLoadData = [](CUmodule* out, const void* image) {
    return LoadImage(image, reinterpret_cast<uintptr_t*>(out));
  };
  d.cuModuleUnload = [](CUmodule module) {
    return UnloadImage(reinterpret_cast<uintptr_t>(module));
  };
  // A function's handle contains its image and its name.
  d.cuModuleGetFunction = [](CUfunction* out, CUmodule module,
                             const char* name) {
    *out = HandleOf<CUfunction>(reinterpret_cast<uintptr_t>(module) * 1000 +
                                std::strlen(name));
    return CUDA_SUCCESS;
  };
}

void AddLibraries(Driver& d) {
  d.cuLibraryLoadData = [](CUlibrary* out, const void* image, const int*,
                           void**, unsigned, const int*, void**, unsigned) {
    return LoadImage(image, reinterpret_cast<uintptr_t*>(out));
  };
  d.cuLibraryUnload = [](CUlibrary library) {
    return UnloadImage(reinterpret_cast<uintptr_t>(library));
  };
  d.cuLibraryGetKernel = [](CUkernel* out, CUlibrary library,
                            const char* name) {
    *out = HandleOf<CUkernel>(reinterpret_cast<uintptr_t>(library) * 1000 +
                              std::strlen(name));
    return CUDA_SUCCESS;
  };
  d.cuKernelGetFunction = [](CUfunction* out, CUkernel kernel) {
    *out = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
  };
}

}  // namespace

Driver FakeDriver(bool with_libraries) {
  Driver d;
  d.version = with_libraries ? 12040 : 11080;
  AddDevice(d);
  AddStreams(d);
  AddModules(d);
  if (with_libraries) AddLibraries(d);
  return d;
}

}  // namespace kvevict::cuda
