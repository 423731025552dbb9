#include "cuda/driver.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>

#include "cuda/no_memory.h"
#include "cuda/shared_library.h"

namespace kvevict::cuda {
namespace {

// Drivers that have been opened, by path. They stay until the process ends: the
// driver's own state may be gone before our destructors would run.
struct OpenDriver {
  std::string path;
  Driver driver;
  const OpenDriver* next;
};

std::mutex open_mutex;
constinit const OpenDriver* open_drivers = nullptr;

Status OpenLibrary(const char* path, SharedLibrary* library) {
  std::string reason;
  if (path[0] != '\0') {
    if (library->Open(path, &reason)) return Status();
    return Unavailable("device cuda: no driver: %s", reason.c_str());
  }
  for (const LibraryName& name : LibraryNames()) {
    if (name.library != Library::kDriver) continue;
    if (library->Open(name.name, &reason)) return Status();
  }
  return Unavailable("device cuda: no driver: %s", reason.c_str());
}

enum Need { kOptional, kRequired };

// Finds all symbols. Returns the first that is required and missing, or null.
const char* FindFunctions(const SharedLibrary& library, Driver* driver) {
  const char* missing = nullptr;
#define KVEVICT_DRIVER(name, symbol, need, ...)                               \
  driver->name =                                                              \
      reinterpret_cast<decltype(driver->name)>(library.Symbol(symbol));       \
  if (driver->name == nullptr && (need) == kRequired && missing == nullptr) { \
    missing = symbol;                                                         \
  }
#include "cuda/driver_functions.inc"
#undef KVEVICT_DRIVER
  return missing;
}

// The usual reason for a failed cuInit.
const char* Hint(CUresult result) {
  switch (result) {
    case CUDA_ERROR_STUB_LIBRARY:
      return "; this is the toolkit's stub, not a driver";
    case CUDA_ERROR_NO_DEVICE:
      return "; the driver sees no GPU";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "; libcuda and the kernel's driver differ in version";
    default:
      return "";
  }
}

Status CheckAge(int version) {
  if (version >= kOldestDriver) return Status();
  return Unavailable(
      "device cuda: the driver is of CUDA %d.%d, too old; %d.%d or newer is "
      "needed",
      CudaMajor(version), CudaMinor(version), CudaMajor(kOldestDriver),
      CudaMinor(kOldestDriver));
}

Status Start(const char* missing, Driver* driver) {
  // The age comes first, since an old driver lacks symbols too.
  if (driver->cuDriverGetVersion != nullptr &&
      driver->cuDriverGetVersion(&driver->version) == CUDA_SUCCESS) {
    KV_RETURN_IF_ERROR(CheckAge(driver->version));
  }
  if (missing != nullptr) {
    return Unavailable("device cuda: the driver's library has no %s", missing);
  }
  if (const CUresult r = driver->cuInit(0); r != CUDA_SUCCESS) {
    return Unavailable("device cuda: cuInit: %s (%d)%s", ErrorName(*driver, r),
                       r, Hint(r));
  }
  if (const CUresult r = driver->cuDriverGetVersion(&driver->version);
      r != CUDA_SUCCESS) {
    return Unavailable("device cuda: cuDriverGetVersion: %s (%d)",
                       ErrorName(*driver, r), r);
  }
  return CheckAge(driver->version);
}

}  // namespace

Status Driver::Open(const char* path, const Driver** out) {
  if (path == nullptr) path = "";
  return WithoutThrowing("device cuda: opening the driver", [&] {
    const std::lock_guard lock(open_mutex);
    for (const OpenDriver* o = open_drivers; o != nullptr; o = o->next) {
      if (o->path != path) continue;
      *out = &o->driver;
      return Status();
    }
    SharedLibrary library;
    KV_RETURN_IF_ERROR(OpenLibrary(path, &library));
    Driver driver;
    const char* missing = FindFunctions(library, &driver);
    KV_RETURN_IF_ERROR(Start(missing, &driver));
    open_drivers = new OpenDriver{path, driver, open_drivers};
    *out = &open_drivers->driver;
    return Status();
  });
}

const char* ErrorName(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "error";
  }
  return name;
}

Status IsCaptured(const Driver& driver, CUstream stream, bool* out) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(stream, &capture);
  // The legacy default stream joins the capture of any other stream.
  *out = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (*out) return Status();
  if (result != CUDA_SUCCESS) {
    return DriverStatus(driver, result, "cuStreamIsCapturing");
  }
  *out = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  return Status();
}

bool IsContextLost(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return result >= CUDA_ERROR_HARDWARE_STACK_ERROR &&
             result <= CUDA_ERROR_LAUNCH_FAILED;
  }
}

Status DriverStatus(const Driver& driver, CUresult result, const char* format,
                    ...) {
  char call[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(call, sizeof(call), format, args);
  va_end(args);
  const char* name = ErrorName(driver, result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return OutOfMemory("%s: %s (%d)", call, name, result);
  }
  return DeviceError("%s: %s (%d)%s", call, name, result,
                     IsContextLost(result) ? "; context lost" : "");
}

}  // namespace kvevict::cuda
