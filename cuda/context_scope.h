// Makes a CUDA context current for a scope and then restores the thread's own.
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

  // May be called once per scope.
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

// While another thread captures in global mode, no thread may allocate, free,
// load code or wait, unless it opts out. This opts out: what is done in its
// scope is in no graph.
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
