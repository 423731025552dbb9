// The state of a context on CUDA: the caller's CUcontext, the driver, the
// compiler and the compiled kernels.
#ifndef KVEVICT_CUDA_DEVICE_STATE_H_
#define KVEVICT_CUDA_DEVICE_STATE_H_

#include <memory>

#include "core/context.h"
#include "core/status.h"
#include "cuda/context_scope.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/module_cache.h"

namespace kvevict {

class DeviceState {
 public:
  // `context` must outlive it. Texts of `options` are copied.
  static Status Open(const Context& context,
                     const kvevict_context_options& options, DeviceState** out);
  ~DeviceState();

  const cuda::Driver& driver() const { return *driver_; }
  // Makes the caller's CUcontext current while the scope lives.
  Status Enter(cuda::ContextScope* scope) const {
    return scope->Enter(cuda_context_);
  }
  // UNSUPPORTED, naming `what`, if the stream is captured into a graph. It
  // cannot be waited for then, since that would end the capture. The CUcontext
  // is current.
  Status CheckCanWait(cuda::CUstream stream, const char* what) const;
  int sm() const { return device_.sm; }  // 80 is compute capability 8.0
  cuda::ModuleCache& modules() const { return *modules_; }
  // The library's own stream, which joins no capture; for work outside calls.
  cuda::CUstream stream() const { return stream_; }
  bool debug() const { return debug_; }
  // With debug set: a u32 on the device, used by one call at a time.
  uint64_t debug_word() const { return debug_word_; }

 private:
  DeviceState() = default;
  Status FindContext(void* given);
  Status MakeStream();
  Status EnterDebugMode();

  const cuda::Driver* driver_ = nullptr;
  cuda::CUcontext cuda_context_ = nullptr;
  cuda::CUstream stream_ = nullptr;
  cuda::Device device_;
  bool debug_ = false;
  cuda::CUdeviceptr debug_word_ = 0;
  std::unique_ptr<cuda::ModuleCache> modules_;
};

namespace cuda {

inline DeviceState& DeviceOf(const Context& context) {
  return *context.device_state();
}

}  // namespace cuda
}  // namespace kvevict

#endif  // KVEVICT_CUDA_DEVICE_STATE_H_
