// Selects the llama.cpp that the adapter calls. Every function of upstream.inc
// is defined here, invisible outside of the library. It calls the function of
// the same name in the library that kvevict_llama_use() has named, or else in
// the program. A project that compiles the adapter's sources and links
// llama.cpp itself leaves this file out.
#if !defined(_WIN32)

#include <dlfcn.h>

#include <atomic>
#include <cstddef>

#include "adapter.h"
#include "error.h"
#include "guard.h"

using kvevict::llama::Fail;

namespace {

constexpr const char* kNames[] = {
#define KVEVICT_UPSTREAM(result, name, parameters, arguments) #name,
#include "upstream.inc"
#undef KVEVICT_UPSTREAM
};
enum : size_t {
#define KVEVICT_UPSTREAM(result, name, parameters, arguments) k_##name,
#include "upstream.inc"
#undef KVEVICT_UPSTREAM
  kFunctions
};

constinit std::atomic<void*> addresses[kFunctions] = {};

void* Address(size_t i) {
  void* address = addresses[i].load(std::memory_order_acquire);
  if (address == nullptr) {
    address = dlsym(RTLD_DEFAULT, kNames[i]);
    if (address == nullptr) {
      Fail(KVEVICT_ERROR_UNSUPPORTED, "the program has no ", kNames[i],
           "(): libllama is not loaded, or its symbols are hidden; name it by "
           "kvevict_llama_use()");
    }
    addresses[i].store(address, std::memory_order_release);
  }
  return address;
}

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

}  // namespace

#define KVEVICT_UPSTREAM(result, name, parameters, arguments)               \
  extern "C" __attribute__((visibility("hidden"))) result name parameters { \
    return reinterpret_cast<decltype(&name)>(Address(k_##name)) arguments;  \
  }
#include "upstream.inc"
#undef KVEVICT_UPSTREAM

kvevict_status kvevict_llama_use(const char* path, void* handle) noexcept {
  return kvevict::llama::Guard([&] {
    if ((path == nullptr) == (handle == nullptr)) {
      Fail(KVEVICT_ERROR_INVALID_ARGUMENT,
           "exactly one of path and handle must be given");
    }
    // Stays open if all functions are found, since they are called from then
    // on.
    std::unique_ptr<void, CloseLibrary> opened;
    if (path != nullptr) {
      opened.reset(dlopen(path, RTLD_NOW | RTLD_LOCAL));
      if (opened == nullptr) Fail(KVEVICT_ERROR_UNAVAILABLE, dlerror());
      handle = opened.get();
    }
    void* found[kFunctions];
    for (size_t i = 0; i < kFunctions; ++i) {
      found[i] = dlsym(handle, kNames[i]);
      if (found[i] == nullptr) {
        Fail(KVEVICT_ERROR_UNSUPPORTED, path != nullptr ? path : "handle",
             ": no ", kNames[i], "() there; it must be a libllama.so");
      }
      const void* used = addresses[i].load(std::memory_order_acquire);
      if (used != nullptr && used != found[i]) {
        Fail(KVEVICT_ERROR_INVALID_ARGUMENT, kNames[i],
             "() of another library is in use already; call "
             "kvevict_llama_use() before the first adapter is attached");
      }
    }
    for (size_t i = 0; i < kFunctions; ++i) {
      addresses[i].store(found[i], std::memory_order_release);
    }
    static_cast<void>(opened.release());
  });
}

#endif
