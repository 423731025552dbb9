#include "cuda/shared_library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#if __has_include(<link.h>)
#include <link.h>
#endif
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

namespace {

// Has no dynamic linker: what it opens brings a second C library, and crashes.
bool IsStaticProgram() {
#if __has_include(<link.h>)
  constexpr int kStatic = 1;
  constexpr int kDynamic = 2;
  const auto look = [](dl_phdr_info* program, size_t, void*) {
    // The program comes first and has no name; but for namespaces of dlmopen.
    if (program->dlpi_name != nullptr && *program->dlpi_name != '\0') {
      return kDynamic;
    }
    for (int i = 0; i < program->dlpi_phnum; ++i) {
      if (program->dlpi_phdr[i].p_type == PT_INTERP) return kDynamic;
    }
    return kStatic;
  };
  return dl_iterate_phdr(look, nullptr) == kStatic;
#else
  return false;
#endif
}

}  // namespace

bool SharedLibrary::Open(const char* name, std::string* reason) {
  if (IsStaticProgram()) {
    *reason = std::string(name) + ": a static program cannot open libraries";
    return false;
  }
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
