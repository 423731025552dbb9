// The driver API that the mock implements. It declares types again, so that the
// library's own declarations are checked against others.
#ifndef KVEVICT_TESTS_RIG_MOCK_API_H_
#define KVEVICT_TESTS_RIG_MOCK_API_H_

#include <cstddef>
#include <cstdint>

namespace kvevict::mock {
struct Context;
struct Stream;
struct Event;
struct Module;
struct Library;
struct Kernel;
struct Function;
struct Graph;
}  // namespace kvevict::mock

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = kvevict::mock::Context*;
using CUstream = kvevict::mock::Stream*;
using CUevent = kvevict::mock::Event*;
using CUmodule = kvevict::mock::Module*;
using CUlibrary = kvevict::mock::Library*;
using CUkernel = kvevict::mock::Kernel*;
using CUfunction = kvevict::mock::Function*;
using CUgraph = kvevict::mock::Graph*;
using CUgraphExec = kvevict::mock::Graph*;

// Results by the driver's names.
#define KVEVICT_MOCK_RESULTS(ROW)                  \
  ROW(CUDA_SUCCESS, 0)                             \
  ROW(CUDA_ERROR_INVALID_VALUE, 1)                 \
  ROW(CUDA_ERROR_OUT_OF_MEMORY, 2)                 \
  ROW(CUDA_ERROR_NOT_INITIALIZED, 3)               \
  ROW(CUDA_ERROR_STUB_LIBRARY, 34)                 \
  ROW(CUDA_ERROR_NO_DEVICE, 100)                   \
  ROW(CUDA_ERROR_INVALID_DEVICE, 101)              \
  ROW(CUDA_ERROR_INVALID_IMAGE, 200)               \
  ROW(CUDA_ERROR_INVALID_CONTEXT, 201)             \
  ROW(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)           \
  ROW(CUDA_ERROR_ECC_UNCORRECTABLE, 214)           \
  ROW(CUDA_ERROR_INVALID_PTX, 218)                 \
  ROW(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)     \
  ROW(CUDA_ERROR_INVALID_HANDLE, 400)              \
  ROW(CUDA_ERROR_NOT_FOUND, 500)                   \
  ROW(CUDA_ERROR_ILLEGAL_ADDRESS, 700)             \
  ROW(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)     \
  ROW(CUDA_ERROR_LAUNCH_TIMEOUT, 702)              \
  ROW(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)        \
  ROW(CUDA_ERROR_ASSERT, 710)                      \
  ROW(CUDA_ERROR_MISALIGNED_ADDRESS, 716)          \
  ROW(CUDA_ERROR_LAUNCH_FAILED, 719)               \
  ROW(CUDA_ERROR_NOT_SUPPORTED, 801)               \
  ROW(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)      \
  ROW(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)  \
  ROW(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)  \
  ROW(CUDA_ERROR_ILLEGAL_STATE, 401)               \
  ROW(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)     \
  ROW(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908) \
  ROW(CUDA_ERROR_UNKNOWN, 999)

enum : CUresult {
#define KVEVICT_MOCK_ROW(name, value) name = value,
  KVEVICT_MOCK_RESULTS(KVEVICT_MOCK_ROW)
#undef KVEVICT_MOCK_ROW
};

#define KVEVICT_MOCK_API extern "C" __attribute__((visibility("default")))

#endif  // KVEVICT_TESTS_RIG_MOCK_API_H_
