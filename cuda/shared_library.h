// A library of the system, opened at run time and never closed: the driver and
// NVRTC keep threads and handlers of their own.
#ifndef KVEVICT_CUDA_SHARED_LIBRARY_H_
#define KVEVICT_CUDA_SHARED_LIBRARY_H_

#include <span>
#include <string>

namespace kvevict::cuda {

enum class Library { kDriver, kNvrtc };

struct LibraryName {
  Library library;
  int cuda_major;
  const char* name;  // on this platform
};

// libraries.inc, without the rows that this platform lacks.
std::span<const LibraryName> LibraryNames();

class SharedLibrary {
 public:
  // False, with the system's reason, if there is no such library.
  bool Open(const char* name, std::string* reason);

  // Null if the library has no such symbol.
  void* Symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_SHARED_LIBRARY_H_
