// Libraries, kernels and launches. A library is a variant of a kernel file, found
// among those that CMakeLists.txt compiles, and a kernel in it by its symbol.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>

#include "tests/cuda/shim/driver.h"
#include "tests/cuda/shim/kernel.h"
#include "tests/cuda/shim/shim.h"

namespace kvevict::shim {

void Schedule(const simt::Options& options) { TheState().options = options; }

uint64_t Launches(const char* kernel) {
  uint64_t sum = 0;
  for (const auto& [name, n] : TheState().launches) {
    if (*kernel == '\0' || name == kernel) sum += n;
  }
  return sum;
}

uint64_t Leaks() { return TheState().n_live; }

namespace {

// "topk.cu --std=c++17 -DKV_A=3 -DKV_B=0", as the fake NVRTC has it, to
// "topk_3_0".
std::string VariantOf(const char* image) {
  std::istringstream words(image);
  std::string word;
  words >> word;
  std::string variant = word.substr(0, word.rfind('.'));
  while (words >> word) {
    if (word.rfind("-DKV_", 0) != 0) continue;
    variant += '_' + word.substr(word.find('=') + 1);
  }
  return variant;
}

// The symbol of a kernel in a variant, or NULL.
const Kernel* FindKernel(const std::string& variant, const char* name) {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&Schedule), &self) == 0) return nullptr;
  void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* symbol = dlsym(library, (variant + '_' + name).c_str());
  dlclose(library);
  return symbol == nullptr ? nullptr : reinterpret_cast<GetKernel>(symbol)();
}

}  // namespace

CUresult Shim_cuLibraryLoadData(CUlibrary* out, const void* image, const int*,
                                void**, unsigned, const int*, void**,
                                unsigned) {
  *out = reinterpret_cast<CUlibrary>(
      new std::string(VariantOf(static_cast<const char*>(image))));
  ++TheState().n_live;
  return CUDA_SUCCESS;
}
CUresult Shim_cuLibraryUnload(CUlibrary library) {
  delete reinterpret_cast<std::string*>(library);
  --TheState().n_live;
  return CUDA_SUCCESS;
}

CUresult Shim_cuLibraryGetKernel(CUkernel* out, CUlibrary library,
                                 const char* name) {
  const auto& variant = *reinterpret_cast<const std::string*>(library);
  const Kernel* kernel = FindKernel(variant, name);
  if (kernel == nullptr) {
    std::fprintf(stderr, "%s has not been compiled for the shim\n",
                 variant.c_str());
    return kNotFound;
  }
  *out = reinterpret_cast<CUkernel>(const_cast<Kernel*>(kernel));
  return CUDA_SUCCESS;
}
CUresult Shim_cuKernelGetFunction(CUfunction* out, CUkernel kernel) {
  *out = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult Shim_cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }
CUresult Shim_cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}

CUresult Shim_cuLaunchKernel(CUfunction function, unsigned grid_x,
                             unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream, void** parameters,
                             void**) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(function);
  if (block_x * block_y * block_z > kernel.max_threads) {
    return kInvalidValue;
  }
  // As long as the kernel says, so that the sanitizers see what lies behind.
  std::unique_ptr<char[]> copy(new char[kernel.param_bytes]);
  std::memcpy(copy.get(), parameters[0], kernel.param_bytes);
  ++TheState().launches[kernel.name];
  const std::string error = simt::LaunchErased(
      kernel.run, copy.get(), {grid_x, grid_y, grid_z},
      {block_x, block_y, block_z}, shared_bytes, TheState().options);
  if (error.empty()) return CUDA_SUCCESS;
  std::fprintf(stderr, "%s: %s\n", kernel.name, error.c_str());
  return CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace kvevict::shim
