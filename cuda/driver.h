// The part of the CUDA driver API that is used. It is declared here and found
// at run time, so that neither building nor loading kvevict needs CUDA.
#ifndef KVEVICT_CUDA_DRIVER_H_
#define KVEVICT_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace kvevict::cuda {

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
using CUdevice = int32_t;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

// The results that are distinguished; drivers have more.
enum CUresult : int32_t {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_EXTERNAL_DEVICE = 911
};

enum CUdevice_attribute : int32_t {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,        // kHz
  CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,  // bits
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,            // bytes
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97  // bytes
};

enum CUfunction_attribute : int32_t {
  CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
};

enum CUstreamCaptureStatus : int32_t {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
};

enum CUstreamCaptureMode : int32_t {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2
};

enum CUstream_flags : uint32_t {
  CU_STREAM_DEFAULT = 0,
  CU_STREAM_NON_BLOCKING = 1
};
// NOLINTEND(readability-identifier-naming)

// The oldest driver that works: CUDA 11.2, since which NVRTC makes cubins and
// keeps one name for all minor versions.
inline constexpr int kOldestDriver = 11020;

// 11020 is CUDA 11.2.
constexpr int CudaMajor(int version) { return version / 1000; }
constexpr int CudaMinor(int version) { return version % 1000 / 10; }

struct Driver {
#define KVEVICT_DRIVER(name, symbol, need, ...) \
  CUresult (*name)(__VA_ARGS__) = nullptr;
#include "cuda/driver_functions.inc"
#undef KVEVICT_DRIVER

  int version = 0;  // 12040 is CUDA 12.4

  // Opens the driver at `path`, or by the system's name if that is null or
  // empty, and initialises it. It is opened once per path and process and never
  // closed. UNAVAILABLE, with the reason, if it cannot be used.
  static Status Open(const char* path, const Driver** out);

  // Whether code can be loaded without a context (driver 12).
  bool has_libraries() const {
    return cuLibraryLoadData != nullptr && cuLibraryUnload != nullptr &&
           cuLibraryGetKernel != nullptr && cuKernelGetFunction != nullptr;
  }
};

// The driver's name for a result, or "error".
const char* ErrorName(const Driver& driver, CUresult result);

// Whether work queued on the stream goes into a graph, or would break one. The
// stream's context is current.
Status IsCaptured(const Driver& driver, CUstream stream, bool* out);

// Whether the context of the failed call can no longer be used.
bool IsContextLost(CUresult result);

// The failure of a driver call: DEVICE, or OUT_OF_MEMORY. `format` names the
// call and its object: "cuLaunchKernel of topk.select_topk, grid %u".
[[gnu::format(printf, 3, 4)]] Status DriverStatus(const Driver& driver,
                                                  CUresult result,
                                                  const char* format, ...);

}  // namespace kvevict::cuda

// KV_RETURN_IF_DRIVER_ERROR(driver, cuMemFree(memory), "cuMemFree of %llx", m)
#define KV_RETURN_IF_DRIVER_ERROR(driver, call, ...)                          \
  do {                                                                        \
    if (const ::kvevict::cuda::CUresult kv_result = (driver).call;            \
        kv_result != ::kvevict::cuda::CUDA_SUCCESS) {                         \
      return ::kvevict::cuda::DriverStatus((driver), kv_result, __VA_ARGS__); \
    }                                                                         \
  } while (false)

#endif  // KVEVICT_CUDA_DRIVER_H_
