// Contexts and the stack of each thread.
#include "tests/rig/mock/state.h"

namespace kvevict::mock {

KVEVICT_MOCK_API CUresult cuCtxCreate_v2(CUcontext* out, unsigned /*flags*/,
                                         CUdevice device) {
  KVEVICT_MOCK_CALL(kNothing);
  if (device < 0 || device >= call.state.settings.n_devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *out = NewContext(call.state, device);
  CurrentContexts().push_back(*out);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxDestroy_v2(CUcontext context) {
  KVEVICT_MOCK_CALL(kNothing);
  if (Find(call.state.contexts, context) == nullptr || context->primary) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "unknown context");
  }
  if (call.context == context) CurrentContexts().pop_back();
  DestroyContext(call.state, context);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out,
                                                   CUdevice device) {
  KVEVICT_MOCK_CALL(kNothing);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  ++call.state.primary_retained;
  *out = Primary(call.state);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  KVEVICT_MOCK_CALL(kNothing);
  State& state = call.state;
  if (device != 0 || state.primary_retained == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "not retained");
  }
  if (--state.primary_retained == 0) {
    DestroyContext(state, state.primary);
    state.primary = nullptr;
  }
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxGetCurrent(CUcontext* out) {
  KVEVICT_MOCK_CALL(kNothing);
  *out = call.context;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  KVEVICT_MOCK_CALL(kNothing);
  if (Find(call.state.contexts, context) == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "unknown context");
  }
  CurrentContexts().push_back(context);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  KVEVICT_MOCK_CALL(kNothing);
  if (call.context == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
  }
  if (out != nullptr) *out = call.context;
  CurrentContexts().pop_back();
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxGetDevice(CUdevice* out) {
  KVEVICT_MOCK_CALL(kContext);
  *out = call.context->device;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxSynchronize() {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  return CUDA_SUCCESS;
}

}  // namespace kvevict::mock
