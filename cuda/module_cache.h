// The kernels of a kvevict context, compiled and loaded once per variant. A
// loaded module is found without a lock or memory. The one CUDA context that
// they are for is current in every call and in the destructor.
#ifndef KVEVICT_CUDA_MODULE_CACHE_H_
#define KVEVICT_CUDA_MODULE_CACHE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/context.h"
#include "core/status.h"
#include "cuda/cubin_cache.h"
#include "cuda/driver.h"
#include "cuda/jit.h"
#include "cuda/kernel_text.h"

namespace kvevict::cuda {

// A variant of a module: its compile-time constants, -Dname=value.
struct ModuleKey {
  static constexpr size_t kMaxDefines = 20;

  struct Define {
    const char* name;  // static
    int64_t value;
  };

  ModuleId module{};
  // The most that a launch uses, in bytes. Only more than 48 KiB must be
  // requested.
  uint32_t dynamic_shared_bytes = 0;
  uint32_t n_defines = 0;
  std::array<Define, kMaxDefines> defines{};

  void Add(const char* name, int64_t value) {
    defines[n_defines++] = {name, value};
  }
};

// A loaded variant; lives as long as its cache.
class Module {
 public:
  // The function of one of this module's kernels; null for those of other
  // modules.
  CUfunction function(KernelId kernel) const {
    return functions_[static_cast<size_t>(kernel)];
  }

 private:
  friend class ModuleCache;

  ModuleKey key_;
  CUlibrary library_ = nullptr;  // one of the two
  CUmodule module_ = nullptr;
  CUfunction functions_[kNKernels] = {};
  const Module* next_ = nullptr;
};

class ModuleCache {
 public:
  // `context` provides memory and takes the log. It, `driver` and `nvrtc` must
  // outlive the cache.
  ModuleCache(const Context& context, const Driver& driver, const Nvrtc& nvrtc)
      : context_(context), driver_(driver), nvrtc_(nvrtc) {}
  ModuleCache(const ModuleCache&) = delete;
  ModuleCache& operator=(const ModuleCache&) = delete;

  // Unloads all.
  ~ModuleCache();

  // See CubinCache::Open(). Must be called before the first Find().
  Status KeepCubinsIn(const char* folder) { return cubins_.Open(folder); }

  // The first call for a variant compiles and loads it. If `stream` is being
  // captured into a graph, that is UNSUPPORTED. Later calls take no lock and no
  // memory. Threads: safe.
  Status Find(const ModuleKey& key, CUstream stream, const Module** out);

 private:
  const Module* Lookup(const ModuleKey& key) const;
  Status CheckNotCapturing(const ModuleKey& key, CUstream stream) const;
  Status Add(const ModuleKey& key, const Module** out);
  Status MakeImage(const ModuleKey& key, std::string* image) const;
  Status Load(const std::string& image, Module* module) const;
  Status LoadImage(const std::string& image, Module* module) const;
  Status LoadFunction(Module* module, KernelId kernel) const;
  void Unload(const Module& module) const;

  const Context& context_;
  const Driver& driver_;
  const Nvrtc& nvrtc_;
  CubinCache cubins_;

  std::mutex adding_;
  std::atomic<const Module*> newest_{nullptr};  // a list; only grows
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_MODULE_CACHE_H_
