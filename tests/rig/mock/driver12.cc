// Functions that came with driver 12: a driver 11 is built without this file.
#include "tests/rig/mock/code.h"

namespace kvevict::mock {

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

// ---- Green contexts: parts of the multiprocessors, by groups of 8 ----

// CUdevResource as of CUDA 12.4.
struct Resource {
  int type;
  unsigned char padding[92];
  unsigned n_multiprocessors;
  unsigned char rest[44];
};

constexpr unsigned kMultiprocessors = 132;
constexpr unsigned kGroup = 8;

KVEVICT_MOCK_API CUresult cuDeviceGetDevResource(CUdevice device, Resource* out,
                                                 int type) {
  KVEVICT_MOCK_CALL(kNothing);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  if (type != 1) return call.Misuse(CUDA_ERROR_INVALID_VALUE, "no such type");
  *out = {type, {}, kMultiprocessors, {}};
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDevSmResourceSplitByCount(
    Resource* out, unsigned* n_parts, const Resource* from, Resource* rest,
    unsigned flags, unsigned least) {
  KVEVICT_MOCK_CALL(kNothing);
  const unsigned n = (least + kGroup - 1) / kGroup * kGroup;
  if (from->type != 1 || *n_parts != 1 || flags != 0 || n == 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "a split");
  }
  if (n > from->n_multiprocessors) {
    *n_parts = 0;
    return CUDA_SUCCESS;
  }
  *rest = {1, {}, from->n_multiprocessors - n, {}};
  *out = {1, {}, n, {}};
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuDevResourceGenerateDesc(void** out, Resource* parts,
                                                    unsigned n) {
  KVEVICT_MOCK_CALL(kNothing);
  if (n != 1 || parts->n_multiprocessors % kGroup != 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "no part of a split");
  }
  *out = reinterpret_cast<void*>(uintptr_t{parts->n_multiprocessors});
  return CUDA_SUCCESS;
}

// A green context is its CUcontext. Kernels run as anywhere: what it holds back
// is not played.
KVEVICT_MOCK_API CUresult cuGreenCtxCreate(CUcontext* out, void* description,
                                           CUdevice device, unsigned flags) {
  KVEVICT_MOCK_CALL(kNothing);
  if (description == nullptr || device != 0 || flags != 1) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "a description or its flags");
  }
  *out = NewContext(call.state, device);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuCtxFromGreenCtx(CUcontext* out, CUcontext green) {
  KVEVICT_MOCK_CALL(kNothing);
  if (Find(call.state.contexts, green) == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "unknown context");
  }
  *out = green;
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuGreenCtxStreamCreate(CUstream* out, CUcontext green,
                                                 unsigned flags, int priority) {
  KVEVICT_MOCK_CALL(kNothing);
  if (Find(call.state.contexts, green) == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "unknown context");
  }
  if (flags != 1 || priority != 0) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "flags: non-blocking alone");
  }
  auto stream = std::make_unique<Stream>();
  stream->context = green;
  *out = Keep(call.state.streams, std::move(stream));
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuGreenCtxDestroy(CUcontext green) {
  KVEVICT_MOCK_CALL(kNothing);
  if (Find(call.state.contexts, green) == nullptr || green->primary) {
    return call.Misuse(CUDA_ERROR_INVALID_CONTEXT, "unknown context");
  }
  DestroyContext(call.state, green);
  return CUDA_SUCCESS;
}

}  // namespace kvevict::mock
