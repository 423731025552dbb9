#include "cuda/shared_library.h"

#include <iterator>

#include "core/platform.h"

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

bool SharedLibrary::Open(const char* name, std::string* reason) {
  handle_ = platform::OpenLibrary(name, reason);
  return handle_ != nullptr;
}

void* SharedLibrary::Symbol(const char* name) const {
  return platform::FindSymbol(handle_, name);
}

}  // namespace kvevict::cuda
