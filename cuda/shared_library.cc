#include "cuda/shared_library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace kvevict::cuda {
namespace {

#ifdef _WIN32
#define KVEVICT_LIBRARY(library, cuda_major, linux_name, windows_name) \
  {Library::library, cuda_major, windows_name},
#else
#define KVEVICT_LIBRARY(library, cuda_major, linux_name, windows_name) \
  {Library::library, cuda_major, linux_name},
#endif
constexpr LibraryName kRows[] = {
#include "cuda/libraries.inc"
};
#undef KVEVICT_LIBRARY

constexpr auto kNames = [] {
  struct {
    LibraryName rows[std::size(kRows)] = {};
    size_t n = 0;
  } names;
  for (const LibraryName& row : kRows) {
    if (row.name != nullptr) names.rows[names.n++] = row;
  }
  return names;
}();

}  // namespace

std::span<const LibraryName> LibraryNames() { return {kNames.rows, kNames.n}; }

#ifdef _WIN32

bool SharedLibrary::Open(const char* name, std::string* reason) {
  handle_ = LoadLibraryA(name);
  if (handle_ != nullptr) return true;
  *reason = std::string(name) + ": error " + std::to_string(GetLastError());
  return false;
}

void* SharedLibrary::Symbol(const char* name) const {
  return reinterpret_cast<void*>(
      GetProcAddress(static_cast<HMODULE>(handle_), name));
}

#else

bool SharedLibrary::Open(const char* name, std::string* reason) {
  handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return true;
  const char* error = dlerror();
  *reason = error != nullptr ? error : name;
  return false;
}

void* SharedLibrary::Symbol(const char* name) const {
  return dlsym(handle_, name);
}

#endif

}  // namespace kvevict::cuda
