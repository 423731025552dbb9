#include "cuda/module_cache.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "cuda/context_scope.h"
#include "cuda/device.h"
#include "cuda/no_memory.h"

namespace kvevict::cuda {
namespace {

bool IsSame(const ModuleKey& a, const ModuleKey& b) {
  if (a.module != b.module || a.n_defines != b.n_defines ||
      a.dynamic_shared_bytes != b.dynamic_shared_bytes) {
    return false;
  }
  for (uint32_t i = 0; i < a.n_defines; ++i) {
    if (a.defines[i].value != b.defines[i].value) return false;
    if (std::strcmp(a.defines[i].name, b.defines[i].name) != 0) return false;
  }
  return true;
}

std::vector<std::string> Options(const ModuleKey& key) {
  std::vector<std::string> options;
  for (uint32_t i = 0; i < key.n_defines; ++i) {
    options.push_back(std::string("-D") + key.defines[i].name + "=" +
                      std::to_string(key.defines[i].value));
  }
  return options;
}

// Everything that the image depends on. Texts are added with their terminator,
// so that no two lists of texts look alike.
Digest DiskKey(const SourceText& program, const Target& target,
               std::span<const std::string> options, int nvrtc_version) {
  Sha256 hash;
  const auto add = [&](const char* text) {
    hash.Add(text, std::strlen(text) + 1);
  };
  for (const int number : {KVEVICT_VERSION_MAJOR, KVEVICT_VERSION_MINOR,
                           KVEVICT_VERSION_PATCH, nvrtc_version}) {
    add(std::to_string(number).c_str());
  }
  for (const std::string& option :
       CompileOptions(options, target, nvrtc_version)) {
    add(option.c_str());
  }
  add(program.name);
  add(program.text);
  for (const SourceText& include : IncludeTexts()) {
    add(include.name);
    add(include.text);
  }
  return hash.Finish();
}

}  // namespace

Status ModuleCache::Find(const ModuleKey& key, CUstream stream,
                         const Module** out) {
  *out = Lookup(key);
  if (*out != nullptr) return Status();
  KV_RETURN_IF_ERROR(CheckNotCapturing(key, stream));
  return WithoutThrowing(ModuleName(key.module), [&] {
    const std::lock_guard lock(adding_);
    *out = Lookup(key);  // another thread may have added it
    return *out != nullptr ? Status() : Add(key, out);
  });
}

const Module* ModuleCache::Lookup(const ModuleKey& key) const {
  const Module* module = newest_.load(std::memory_order_acquire);
  while (module != nullptr && !IsSame(module->key_, key))
    module = module->next_;
  return module;
}

Status ModuleCache::CheckNotCapturing(const ModuleKey& key,
                                      CUstream stream) const {
  bool captured = false;
  KV_RETURN_IF_ERROR(IsCaptured(driver_, stream, &captured));
  if (!captured) return Status();
  return Unsupported(
      "kernels of %s are not prepared, and cannot be while the stream is "
      "captured into a graph",
      ModuleName(key.module));
}

Status ModuleCache::Add(const ModuleKey& key, const Module** out) {
  std::string image;
  KV_RETURN_IF_ERROR(MakeImage(key, &image));
  Module* module = NewObject<Module>(context_);
  if (module == nullptr) {
    return OutOfMemory("module %s: no memory for %zu bytes",
                       ModuleName(key.module), sizeof(Module));
  }
  module->key_ = key;
  const Status status = Load(image, module);
  if (!status.ok()) {
    Unload(*module);
    context_.Free(module, sizeof(Module), alignof(Module));
    return status;
  }
  module->next_ = newest_.load(std::memory_order_relaxed);
  newest_.store(module, std::memory_order_release);
  *out = module;
  return Status();
}

Status ModuleCache::MakeImage(const ModuleKey& key, std::string* image) const {
  const char* name = ModuleName(key.module);
  CUdevice handle = 0;
  KV_RETURN_IF_DRIVER_ERROR(driver_, cuCtxGetDevice(&handle), "cuCtxGetDevice");
  Device device;
  KV_RETURN_IF_ERROR(GetDevice(driver_, handle, &device));
  Target target;
  KV_RETURN_IF_ERROR(nvrtc_.FindTarget(device.sm, &target));

  const SourceText* program = ProgramText(key.module);
  if (program == nullptr) return Internal("module %s has no source", name);
  const std::vector<std::string> options = Options(key);
  const Digest disk_key = DiskKey(*program, target, options, nvrtc_.version());
  if (cubins_.Load(disk_key, image)) {
    context_.Log(KVEVICT_LOG_DEBUG, "%s for %s: from the cubin cache", name,
                 target.name().c_str());
    return Status();
  }

  const auto start = std::chrono::steady_clock::now();
  Compiled compiled;
  KV_RETURN_IF_ERROR(
      nvrtc_.Compile(*program, IncludeTexts(), options, target, &compiled));
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  context_.Log(KVEVICT_LOG_INFO, "%s for %s: compiled in %.0f ms, %zu bytes",
               name, target.name().c_str(), elapsed.count(),
               compiled.image.size());

  std::string reason;
  if (!cubins_.Store(disk_key, compiled.image, &reason)) {
    context_.Log(KVEVICT_LOG_WARNING, "%s: not kept in the cubin cache: %s",
                 name, reason.c_str());
  }
  *image = std::move(compiled.image);
  return Status();
}

Status ModuleCache::Load(const std::string& image, Module* module) const {
  const RelaxedCapture relaxed(driver_);
  KV_RETURN_IF_ERROR(LoadImage(image, module));
  for (size_t i = 0; i < kNKernels; ++i) {
    if (kKernels[i].module != module->key_.module) continue;
    KV_RETURN_IF_ERROR(LoadFunction(module, static_cast<KernelId>(i)));
  }
  return Status();
}

Status ModuleCache::LoadImage(const std::string& image, Module* module) const {
  const char* name = ModuleName(module->key_.module);
  if (driver_.has_libraries()) {
    KV_RETURN_IF_DRIVER_ERROR(
        driver_,
        cuLibraryLoadData(&module->library_, image.data(), nullptr, nullptr, 0,
                          nullptr, nullptr, 0),
        "cuLibraryLoadData of %s", name);
  } else {
    KV_RETURN_IF_DRIVER_ERROR(driver_,
                              cuModuleLoadData(&module->module_, image.data()),
                              "cuModuleLoadData of %s", name);
  }
  return Status();
}

Status ModuleCache::LoadFunction(Module* module, KernelId kernel) const {
  const char* module_name = ModuleName(module->key_.module);
  const char* name = InfoOf(kernel).name;
  CUfunction* function = &module->functions_[static_cast<size_t>(kernel)];
  if (module->library_ != nullptr) {
    CUkernel handle = nullptr;
    KV_RETURN_IF_DRIVER_ERROR(
        driver_, cuLibraryGetKernel(&handle, module->library_, name),
        "cuLibraryGetKernel of %s.%s", module_name, name);
    KV_RETURN_IF_DRIVER_ERROR(driver_, cuKernelGetFunction(function, handle),
                              "cuKernelGetFunction of %s.%s", module_name,
                              name);
  } else {
    KV_RETURN_IF_DRIVER_ERROR(
        driver_, cuModuleGetFunction(function, module->module_, name),
        "cuModuleGetFunction of %s.%s", module_name, name);
  }

  const uint32_t shared = module->key_.dynamic_shared_bytes;
  if (shared != 0) {
    KV_RETURN_IF_DRIVER_ERROR(
        driver_,
        cuFuncSetAttribute(*function,
                           CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                           static_cast<int>(shared)),
        "cuFuncSetAttribute of %s.%s, %u bytes of shared memory", module_name,
        name, shared);
  }
  // Drivers load a function when it is first needed, which must not be within a
  // capture. Reading its register count loads it too.
  int n_registers = 0;
  const CUresult result =
      driver_.cuFuncLoad != nullptr
          ? driver_.cuFuncLoad(*function)
          : driver_.cuFuncGetAttribute(&n_registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                       *function);
  if (result == CUDA_SUCCESS) return Status();
  return DriverStatus(driver_, result, "loading %s.%s", module_name, name);
}

// Failures are ignored, since nobody could handle them; at the end of a process
// the driver may be gone.
void ModuleCache::Unload(const Module& module) const {
  if (module.library_ != nullptr) {
    (void)driver_.cuLibraryUnload(module.library_);
  }
  if (module.module_ != nullptr) {
    (void)driver_.cuModuleUnload(module.module_);
  }
}

ModuleCache::~ModuleCache() {
  const Module* module = newest_.load(std::memory_order_relaxed);
  while (module != nullptr) {
    const Module* next = module->next_;
    Unload(*module);
    context_.Free(const_cast<Module*>(module), sizeof(Module), alignof(Module));
    module = next;
  }
}

}  // namespace kvevict::cuda
