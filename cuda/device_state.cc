#include "cuda/device_state.h"

#include <new>

namespace kvevict {

using cuda::ContextScope;
using cuda::CUcontext;
using cuda::CUdevice;
using cuda::Driver;
using cuda::RelaxedCapture;

Status DeviceState::Open(const Context& context,
                         const kvevict_context_options& options,
                         DeviceState** out) {
  std::unique_ptr<DeviceState> device(new (std::nothrow) DeviceState());
  if (device == nullptr) {
    return OutOfMemory("context: no memory for %zu bytes", sizeof(DeviceState));
  }
  KV_RETURN_IF_ERROR(Driver::Open(options.libcuda_path, &device->driver_));
  KV_RETURN_IF_ERROR(device->FindContext(options.cuda_context));
  KV_RETURN_IF_ERROR(device->MakeStream());
  const cuda::Nvrtc* nvrtc = nullptr;
  KV_RETURN_IF_ERROR(cuda::Nvrtc::Open(
      options.libnvrtc_path, cuda::CudaMajor(device->driver_->version),
      device->sm(), &nvrtc));
  device->modules_.reset(
      new (std::nothrow) cuda::ModuleCache(context, *device->driver_, *nvrtc));
  if (device->modules_ == nullptr) {
    return OutOfMemory("context: no memory for %zu bytes",
                       sizeof(cuda::ModuleCache));
  }
  KV_RETURN_IF_ERROR(device->modules_->KeepCubinsIn(options.kernel_cache_dir));
  if (options.debug != 0) KV_RETURN_IF_ERROR(device->EnterDebugMode());
  *out = device.release();
  return Status();
}

DeviceState::~DeviceState() {
  if (cuda_context_ == nullptr) return;
  ContextScope scope(*driver_);
  if (!Enter(&scope).ok()) return;  // the CUcontext is gone with all its memory
  const RelaxedCapture relaxed(*driver_);
  modules_.reset();
  if (debug_word_ != 0) (void)driver_->cuMemFree(debug_word_);
  if (stream_ != nullptr) (void)driver_->cuStreamDestroy(stream_);
}

Status DeviceState::FindContext(void* given) {
  cuda_context_ = static_cast<CUcontext>(given);
  if (cuda_context_ == nullptr) {
    KV_RETURN_IF_DRIVER_ERROR(*driver_, cuCtxGetCurrent(&cuda_context_),
                              "cuCtxGetCurrent");
  }
  if (cuda_context_ == nullptr) {
    return Unavailable(
        "device cuda: cuda_context is NULL and no CUcontext is current on this "
        "thread");
  }
  ContextScope scope(*driver_);
  KV_RETURN_IF_ERROR(Enter(&scope));
  CUdevice handle;
  KV_RETURN_IF_DRIVER_ERROR(*driver_, cuCtxGetDevice(&handle),
                            "cuCtxGetDevice");
  KV_RETURN_IF_ERROR(cuda::GetDevice(*driver_, handle, &device_));
  return cuda::CheckDevice(device_, handle);
}

Status DeviceState::MakeStream() {
  ContextScope scope(*driver_);
  KV_RETURN_IF_ERROR(Enter(&scope));
  const RelaxedCapture relaxed(*driver_);
  KV_RETURN_IF_DRIVER_ERROR(
      *driver_, cuStreamCreate(&stream_, cuda::CU_STREAM_NON_BLOCKING),
      "cuStreamCreate");
  return Status();
}

Status DeviceState::EnterDebugMode() {
  ContextScope scope(*driver_);
  KV_RETURN_IF_ERROR(Enter(&scope));
  const RelaxedCapture relaxed(*driver_);
  KV_RETURN_IF_DRIVER_ERROR(*driver_,
                            cuMemAlloc(&debug_word_, sizeof(uint32_t)),
                            "cuMemAlloc of %zu bytes", sizeof(uint32_t));
  debug_ = true;
  return Status();
}

Status DeviceState::CheckCanWait(cuda::CUstream stream,
                                 const char* what) const {
  bool captured = false;
  KV_RETURN_IF_ERROR(cuda::IsCaptured(*driver_, stream, &captured));
  if (!captured) return Status();
  return Unsupported(
      "%s: the stream would have to be waited for, but is captured into a "
      "graph",
      what);
}

}  // namespace kvevict
