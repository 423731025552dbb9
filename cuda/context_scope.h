// Makes a CUDA context current, and leaves the thread as it was.
#ifndef KVEVICT_CUDA_CONTEXT_SCOPE_H_
#define KVEVICT_CUDA_CONTEXT_SCOPE_H_

#include "core/status.h"
#include "cuda/driver.h"

namespace kvevict::cuda {

class ContextScope {
 public:
  explicit ContextScope(const Driver& driver) : driver_(driver) {}
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (is_pushed_) (void)driver_.cuCtxPopCurrent(&popped);
  }

  // Once per scope.
  Status Enter(CUcontext context) {
    KV_RETURN_IF_DRIVER_ERROR(driver_, cuCtxPushCurrent(context),
                              "cuCtxPushCurrent");
    is_pushed_ = true;
    return Status();
  }

 private:
  const Driver& driver_;
  bool is_pushed_ = false;
};

// Another thread's capture in global mode forbids every thread to allocate, free,
// load code and wait, unless it says that it knows: what is done here is in no
// graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_CONTEXT_SCOPE_H_
