// A CUcontext of the mock driver beside the primary one.
#ifndef KVEVICT_TESTS_GPU_OTHER_CONTEXT_H_
#define KVEVICT_TESTS_GPU_OTHER_CONTEXT_H_

#include <dlfcn.h>

#include <memory>

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// Calls a function of the mock that the library does not use.
template <typename... Args>
auto MockSymbol(const char* name) {
  return reinterpret_cast<cuda::CUresult (*)(Args...)>(
      dlsym(RTLD_DEFAULT, name));
}

// A CUcontext beside the primary one, with a stream and the rest of Gpu. It is
// current meanwhile.
class OtherContext {
 public:
  explicit OtherContext(const Gpu& gpu) : context_(Create(gpu)) {
    cuda::CUcontext popped = nullptr;
    (void)gpu.driver().cuCtxPopCurrent(&popped);
    gpu_ = std::make_unique<Gpu>(gpu.libraries(), context_);
  }
  ~OtherContext() {
    gpu_.reset();
    (void)MockSymbol<cuda::CUcontext>("cuCtxDestroy_v2")(context_);
  }
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;

  const Gpu& gpu() const { return *gpu_; }

 private:
  static cuda::CUcontext Create(const Gpu& gpu) {
    cuda::CUcontext context = nullptr;
    Check(gpu.driver(),
          MockSymbol<cuda::CUcontext*, unsigned, int>("cuCtxCreate_v2")(
              &context, 0, 0),
          "cuCtxCreate");
    return context;
  }

  cuda::CUcontext context_;
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_OTHER_CONTEXT_H_
