// Modules, functions, launches.
#include "tests/rig/mock/code.h"

#include <cstring>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/launch.h"

namespace kvevict::mock {

namespace {

constexpr uint64_t kMaxParamBytes = 4096;
constexpr uint64_t kDefaultSharedBytes = 48 << 10;

// The newest PTX of a driver version: 11.8 came with 7.8, 12.0 with 8.0.
uint32_t NewestPtx(int driver_version) {
  const int major = driver_version / 1000;
  const int minor = driver_version % 1000 / 10;
  return static_cast<uint32_t>(10 * (major - 4) + minor);
}

// Comments, then .version.
bool LooksLikePtx(const char* text) {
  for (;;) {
    text += std::strspn(text, " \t\r\n");
    if (std::strncmp(text, "//", 2) != 0) break;
    text += std::strcspn(text, "\n");
  }
  return std::strncmp(text, ".version", 8) == 0;
}

// The driver's result for a kernel's fault.
CUresult ResultOf(const ptx::Error& error) {
  const std::string what = error.what();
  if (what.find("out of bounds") != std::string::npos) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (what.find("misaligned") != std::string::npos) {
    return CUDA_ERROR_MISALIGNED_ADDRESS;
  }
  return CUDA_ERROR_LAUNCH_FAILED;
}

CUresult RunKernel(State& state, const Function& function,
                   const ptx::LaunchShape& shape,
                   const std::vector<uint8_t>& params) {
  const auto failure = state.kernel_failures.find(++state.kernels_run);
  if (failure != state.kernel_failures.end()) return failure->second;
  ptx::LaunchOptions options;
  options.seed = state.settings.seed + state.kernels_run;
  options.resident_blocks = state.settings.resident_blocks;
  options.count_traffic = false;
  options.tensor_core = state.settings.tensor_core;
  try {
    ptx::Launch(*function.kernel, shape, params, function.context->memory,
                options, state.counters[function.kernel->name]);
  } catch (const ptx::Error& error) {
    state.problems.push_back(error.what());
    return ResultOf(error);
  }
  return CUDA_SUCCESS;
}

std::string Text(const ptx::Dimensions& d) {
  return std::to_string(d.x) + " x " + std::to_string(d.y) + " x " +
         std::to_string(d.z);
}

CUresult CheckShape(Call& call, const Function& function,
                    const ptx::LaunchShape& shape) {
  const ptx::Dimensions& grid = shape.grid;
  const ptx::Dimensions& block = shape.block;
  const ptx::Kernel& kernel = *function.kernel;
  if (grid.count() == 0 || grid.x > 0x7FFFFFFF || grid.y > 65535 ||
      grid.z > 65535) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                       kernel.name + ": grid " + Text(grid));
  }
  if (block.count() == 0 || block.count() > kernel.max_threads ||
      block.count() > 1024 || block.z > 64) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                       kernel.name + ": block " + Text(block));
  }
  if (shape.dynamic_shared_bytes > function.dynamic_shared_limit) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                       kernel.name + ": " +
                           std::to_string(shape.dynamic_shared_bytes) +
                           " bytes of dynamic shared memory, allowed are " +
                           std::to_string(function.dynamic_shared_limit));
  }
  return CUDA_SUCCESS;
}

bool IsFunction(const State& state, const Function* handle) {
  for (const auto& [key, module] : state.modules) {
    for (const auto& [name, function] : module->functions) {
      if (function.get() == handle) return true;
    }
  }
  return false;
}

CUresult FindCurrent(Call& call, const Function* function) {
  if (!IsFunction(call.state, function)) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE, "unknown function");
  }
  if (function->context != call.context) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE,
                       "a function of another context");
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CheckImage(Call& call, const void* image) {
  const auto* text = static_cast<const char*>(image);
  if (image == nullptr || !LooksLikePtx(text)) {
    return call.Misuse(CUDA_ERROR_INVALID_IMAGE, "the mock takes PTX only");
  }
  return CUDA_SUCCESS;
}

// Reading a text takes longer than most kernels run. One without variables, and so
// without a place in a context's memory, is read once.
static std::shared_ptr<const ptx::Module> Read(Call& call, const char* text) {
  static std::map<std::string, std::shared_ptr<const ptx::Module>, std::less<>>
      all;
  const auto known = all.find(std::string_view(text));
  if (known != all.end()) return known->second;
  const auto instead_of = call.state.settings.instead_of;
  auto code = std::make_shared<const ptx::Module>(
      instead_of == nullptr ? text : instead_of(text), call.context->memory);
  if (!code->has_variables()) all.emplace(text, code);
  return code;
}

CUresult LoadModule(Call& call, const char* text, Module** out) {
  auto module = std::make_unique<Module>();
  module->context = call.context;
  try {
    module->code = Read(call, text);
  } catch (const ptx::Error& error) {
    return call.Misuse(CUDA_ERROR_INVALID_PTX, error.what());
  }
  const Settings& settings = call.state.settings;
  if (module->code->version() > NewestPtx(settings.driver_version)) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  }
  if (module->code->target() >
      static_cast<uint32_t>(settings.compute_capability)) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  for (const ptx::Kernel& kernel : module->code->kernels()) {
    if (kernel.param_bytes > kMaxParamBytes) {
      return call.Misuse(CUDA_ERROR_INVALID_PTX,
                         kernel.name + ": more than 4096 bytes of arguments");
    }
    if (kernel.static_shared_bytes > kDefaultSharedBytes) {
      return call.Misuse(CUDA_ERROR_INVALID_PTX,
                         kernel.name + ": too much static shared memory");
    }
  }
  *out = Keep(call.state.modules, std::move(module));
  return CUDA_SUCCESS;
}

CUresult FindFunction(Call& call, Module& module, const std::string& name,
                      Function** out) {
  const ptx::Kernel* kernel = module.code->Find(name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  std::unique_ptr<Function>& function = module.functions[name];
  if (function == nullptr) {
    function = std::make_unique<Function>();
    function->context = call.context;
    function->kernel = kernel;
    function->dynamic_shared_limit =
        kDefaultSharedBytes - kernel->static_shared_bytes;
  }
  *out = function.get();
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe);
  const CUresult result = CheckImage(call, image);
  if (result != CUDA_SUCCESS) return result;
  return LoadModule(call, static_cast<const char*>(image), out);
}

KVEVICT_MOCK_API CUresult cuModuleUnload(CUmodule handle) {
  KVEVICT_MOCK_CALL(kContext | kUnsafe | kWaits);
  const Module* module = Find(call.state.modules, handle);
  if (module == nullptr || module->of_library ||
      module->context != call.context) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE,
                       "unknown module, or one of another context");
  }
  call.state.modules.erase(handle);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle,
                                              const char* name) {
  KVEVICT_MOCK_CALL(kContext);
  Module* module = Find(call.state.modules, handle);
  if (module == nullptr || module->context != call.context) {
    return call.Misuse(CUDA_ERROR_INVALID_HANDLE,
                       "unknown module, or one of another context");
  }
  return FindFunction(call, *module, name, out);
}

KVEVICT_MOCK_API CUresult cuFuncSetAttribute(CUfunction function, int attribute,
                                             int value) {
  KVEVICT_MOCK_CALL(kContext);
  const CUresult found = FindCurrent(call, function);
  if (found != CUDA_SUCCESS) return found;
  constexpr int kMaxDynamicSharedBytes = 8;
  if (attribute != kMaxDynamicSharedBytes) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE, "unknown attribute");
  }
  const auto limit = static_cast<uint64_t>(
      SharedBytesOptIn(call.state.settings.compute_capability));
  if (value < 0 ||
      function->kernel->static_shared_bytes + static_cast<uint64_t>(value) >
          limit) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                       "more shared memory than the device has");
  }
  function->dynamic_shared_limit = static_cast<uint64_t>(value);
  return CUDA_SUCCESS;
}

KVEVICT_MOCK_API CUresult cuFuncGetAttribute(int* out, int attribute,
                                             CUfunction function) {
  KVEVICT_MOCK_CALL(kContext);
  const CUresult found = FindCurrent(call, function);
  if (found != CUDA_SUCCESS) return found;
  switch (attribute) {
    case 0:  // MAX_THREADS_PER_BLOCK
      *out = static_cast<int>(function->kernel->max_threads);
      return CUDA_SUCCESS;
    case 1:  // SHARED_SIZE_BYTES
      *out = static_cast<int>(function->kernel->static_shared_bytes);
      return CUDA_SUCCESS;
    case 3:  // LOCAL_SIZE_BYTES
      *out = static_cast<int>(function->kernel->local_bytes);
      return CUDA_SUCCESS;
    case 4:  // NUM_REGS: PTX has other ones than the machine
      *out = 64;
      return CUDA_SUCCESS;
    case 8:  // MAX_DYNAMIC_SHARED_SIZE_BYTES
      *out = static_cast<int>(function->dynamic_shared_limit);
      return CUDA_SUCCESS;
    default:
      return call.Misuse(CUDA_ERROR_INVALID_VALUE, "unknown attribute");
  }
}

KVEVICT_MOCK_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x,
                                         unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y,
                                         unsigned block_z,
                                         unsigned shared_bytes, CUstream stream,
                                         void** parameters, void** extra) {
  KVEVICT_MOCK_CALL(kContext);
  const CUresult found = FindCurrent(call, function);
  if (found != CUDA_SUCCESS) return found;
  const ptx::LaunchShape shape = {
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  const CUresult checked = CheckShape(call, *function, shape);
  if (checked != CUDA_SUCCESS) return checked;
  const ptx::Kernel& kernel = *function->kernel;
  if (extra != nullptr || parameters == nullptr) {
    return call.Misuse(CUDA_ERROR_INVALID_VALUE,
                       "arguments by `parameters` only");
  }
  std::vector<uint8_t> params(kernel.param_bytes);
  for (size_t k = 0; k < kernel.params.size(); ++k) {
    std::memcpy(&params[kernel.params[k].begin], parameters[k],
                kernel.params[k].end - kernel.params[k].begin);
  }
  State& state = call.state;
  return call.Enqueue(stream, [&state, function, shape, params] {
    return RunKernel(state, *function, shape, params);
  });
}

}  // namespace kvevict::mock
