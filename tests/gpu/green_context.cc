#include "tests/gpu/green_context.h"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>

namespace kvevict::gpu {
namespace {

constexpr int kMultiprocessors = 1;     // CU_DEV_RESOURCE_TYPE_SM
constexpr unsigned kDefaultStream = 1;  // CU_GREEN_CTX_DEFAULT_STREAM
constexpr int kNotSupported = 801;      // CUDA_ERROR_NOT_SUPPORTED
constexpr size_t kCountAt = 96;         // of a resource's multiprocessors

}  // namespace

// CUdevResource, with room for those of newer drivers.
struct alignas(8) GreenResource {
  unsigned char bytes[512] = {};

  uint32_t count() const {
    uint32_t n;
    std::memcpy(&n, bytes + kCountAt, sizeof(n));
    return n;
  }
};

struct GreenContext::Calls {
  cuda::CUresult (*get_resource)(cuda::CUdevice, GreenResource*, int);
  cuda::CUresult (*split)(GreenResource*, unsigned*, const GreenResource*,
                          GreenResource*, unsigned, unsigned);
  cuda::CUresult (*describe)(void**, GreenResource*, unsigned);
  cuda::CUresult (*create)(void**, void*, cuda::CUdevice, unsigned);
  cuda::CUresult (*as_context)(cuda::CUcontext*, void*);
  cuda::CUresult (*create_stream)(cuda::CUstream*, void*, unsigned, int);
  cuda::CUresult (*destroy)(void*);

  explicit Calls(const Libraries& libraries) {
    const char* const path =
        libraries.libcuda.empty() ? "libcuda.so.1" : libraries.libcuda.c_str();
    void* const driver = dlopen(path, RTLD_NOW);
    const auto find = [&](const char* name, auto* call) {
      void* const found = driver == nullptr ? nullptr : dlsym(driver, name);
      if (found == nullptr) {
        throw std::runtime_error(std::string("the driver has no ") + name +
                                 ": it is older than CUDA 12.4");
      }
      *call = reinterpret_cast<std::remove_pointer_t<decltype(call)>>(found);
    };
    find("cuDeviceGetDevResource", &get_resource);
    find("cuDevSmResourceSplitByCount", &split);
    find("cuDevResourceGenerateDesc", &describe);
    find("cuGreenCtxCreate", &create);
    find("cuCtxFromGreenCtx", &as_context);
    find("cuGreenCtxStreamCreate", &create_stream);
    find("cuGreenCtxDestroy", &destroy);
  }
};

GreenContext::GreenContext(const Gpu& gpu, uint32_t n_multiprocessors)
    : calls_(std::make_unique<Calls>(gpu.libraries())) {
  const cuda::Driver& driver = gpu.driver();
  cuda::CUdevice device = 0;
  Check(driver, driver.cuCtxGetDevice(&device), "cuCtxGetDevice");
  GreenResource all;
  GreenResource part;
  GreenResource rest;
  unsigned n_parts = 1;
  void* description = nullptr;
  Check(driver, calls_->get_resource(device, &all, kMultiprocessors),
        "cuDeviceGetDevResource");
  Check(driver,
        calls_->split(&part, &n_parts, &all, &rest, 0, n_multiprocessors),
        "cuDevSmResourceSplitByCount");
  if (n_parts != 1) {
    Check(driver, static_cast<cuda::CUresult>(kNotSupported),
          "cuDevSmResourceSplitByCount");
  }
  n_multiprocessors_ = part.count();
  Check(driver, calls_->describe(&description, &part, 1),
        "cuDevResourceGenerateDesc");
  Check(driver, calls_->create(&green_, description, device, kDefaultStream),
        "cuGreenCtxCreate");
  cuda::CUcontext context = nullptr;
  cuda::CUstream stream = nullptr;
  try {
    Check(driver, calls_->as_context(&context, green_), "cuCtxFromGreenCtx");
    Check(
        driver,
        calls_->create_stream(&stream, green_, cuda::CU_STREAM_NON_BLOCKING, 0),
        "cuGreenCtxStreamCreate");
    gpu_ = std::make_unique<Gpu>(gpu.libraries(), context, stream);
  } catch (...) {
    (void)calls_->destroy(green_);
    throw;
  }
}

GreenContext::~GreenContext() {
  gpu_.reset();
  (void)calls_->destroy(green_);
}

}  // namespace kvevict::gpu
