// Functions that came with driver 12: a driver 11 is built without this file.
#include "tests/rig/mock/code.h"

namespace kvevict::mock {

KVEVICT_MOCK_API CUresult cuCtxGetId(CUcontext context,
                                     unsigned long long* out) {
  KVEVICT_MOCK_CALL(kNothing);
  if (context == nullptr) context = call.context;
  if (Find(call.state.contexts, context) == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "unknown context");
  }
  *out = context->id;
  return CUDA_SUCCESS;
}

// Libraries belong to no context: their code is loaded into a context when it
// is first asked for there.
KVEVICT_MOCK_API CUresult cuLibraryLoadData(
    CUlibrary* out, const void* image, int* /*jit_options*/,
    void** /*jit_values*/, unsigned n_jit_options, int* /*library_options*/,
    void** /*library_values*/, unsigned n_library_options) {
  KVEVICT_MOCK_CALL(kUnsafe);
  const CUresult result = CheckImage(call, image);
  if (result != CUDA_SUCCESS) return result;
  if (n_jit_options != 0 || n_library_options != 0) {
    return call.Misuse(CUDA_ERROR_NOT_SUPPORTED, "options");
  }
  auto library = std::make_unique<Library>();
  library->ptx = static_cast<const char*>(image);
  *out = Keep(call.state.libraries, std::move(library));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuLibraryUnload(CUlibrary handle) {
  KVEVICT_MOCK_CALL(kUnsafe);
  const Library* library = Find(call.state.libraries, handle);
  if (library == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown library");
  }
  for (const auto& [context, module] : library->modules) {
    (void)Drain(*context);
    call.state.modules.erase(module);
  }
  call.state.libraries.erase(handle);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle,
                                             const char* name) {
  KVEVICT_MOCK_CALL(kNothing);
  Library* library = Find(call.state.libraries, handle);
  if (library == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown library");
  }
  if (library->ptx.find(".entry " + std::string(name) + "(") ==
      std::string::npos) {
    return CUDA_ERROR_NOT_FOUND;
  }
  library->kernels.push_back(
      std::make_unique<Kernel>(Kernel{library, std::string(name)}));
  *out = library->kernels.back().get();
  return CUDA_SUCCESS;
}

namespace {

bool IsKernel(const State& state, const Kernel* handle) {
  for (const auto& [key, library] : state.libraries) {
    for (const auto& kernel : library->kernels) {
      if (kernel.get() == handle) return true;
    }
  }
  return false;
}

}  // namespace

KVEVICT_MOCK_API CUresult cuKernelGetFunction(CUfunction* out,
                                              CUkernel kernel) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe);
  if (!IsKernel(call.state, kernel)) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown kernel");
  }
  Module*& module = kernel->library->modules[call.context];
  if (module == nullptr) {
    const CUresult result =
        LoadModule(call, kernel->library->ptx.c_str(), &module);
    if (result != CUDA_SUCCESS) {
      kernel->library->modules.erase(call.context);
      return result;
    }
    module->of_library = true;
  }
  return FindFunction(call, *module, kernel->name, out);
}

KVEVICT_MOCK_API CUresult cuFuncLoad(CUfunction /*function*/) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe);
  return CUDA_SUCCESS;
}

}  // namespace kvevict::mock
