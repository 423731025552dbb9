// Libraries, kernels and launches. A library is a kernel file with its constants.
// The tests' compiler compiles it when it is first loaded.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "tests/paths.h"
#include "tests/rig/shim/driver.h"
#include "tests/rig/shim/kernel.h"

namespace kvevict::shim {

namespace {

// A folder of this process.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "kvevict-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// "topk.cu --std=c++17 -DKV_A=3 -DKV_B=0" as the fake NVRTC writes it, without
// NVRTC's own options.
std::string VariantOf(const char* image) {
  std::istringstream words(image);
  std::string variant;
  std::string word;
  words >> variant;
  while (words >> word) {
    if (word.rfind("-DKV_", 0) == 0) variant += ' ' + word;
  }
  return variant;
}

// A library in this process, or NULL.
void* Compile(const std::string& variant) {
  static const Folder folder;
  static int n_compiled = 0;
  const std::string path =
      folder.path() + '/' + std::to_string(n_compiled++) + ".so";
  const std::string command =
      std::string("sh '") + test_shim_compile + "' '" + path + "' " + variant;
  if (std::system(command.c_str()) != 0) {
    std::fprintf(stderr, "failed: %s\n", command.c_str());
    return nullptr;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  return library;
}

}  // namespace

CUresult Shim_cuLibraryLoadData(CUlibrary* out, const void* image, const int*,
                                void**, unsigned, const int*, void**,
                                unsigned) {
  const std::string variant = VariantOf(static_cast<const char*>(image));
  void*& library = TheState().libraries[variant];
  if (library == nullptr) library = Compile(variant);
  if (library == nullptr) return kInvalidImage;
  *out = reinterpret_cast<CUlibrary>(library);
  return CUDA_SUCCESS;
}
// It may be loaded again, and is compiled only once.
CUresult Shim_cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }

CUresult Shim_cuLibraryGetKernel(CUkernel* out, CUlibrary library,
                                 const char* name) {
  *out = reinterpret_cast<CUkernel>(
      dlsym(library, (std::string("kv_") + name).c_str()));
  return *out == nullptr ? kNotFound : CUDA_SUCCESS;
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
                             unsigned shared_bytes, CUstream stream,
                             void** parameters, void**) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(function);
  const simt::Dim3 grid = {grid_x, grid_y, grid_z};
  const simt::Dim3 block = {block_x, block_y, block_z};
  if (block_x * block_y * block_z > kernel.max_threads) {
    return kInvalidValue;
  }
  const std::shared_ptr<char[]> copy(new char[kernel.param_bytes]);
  std::memcpy(copy.get(), parameters[0], kernel.param_bytes);
  return Queue(stream, [&kernel, copy, grid, block, shared_bytes] {
    const std::string error = simt::LaunchErased(kernel.run, copy.get(), grid,
                                                 block, shared_bytes, {});
    if (error.empty()) return CUDA_SUCCESS;
    std::fprintf(stderr, "%s: %s\n", kernel.name, error.c_str());
    return CUDA_ERROR_LAUNCH_FAILED;
  });
}

}  // namespace kvevict::shim
