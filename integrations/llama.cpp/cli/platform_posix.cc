#ifndef _WIN32
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "platform.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace kvevict::llama_cli {

uint64_t ResidentBytes() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t PeakBytes() {
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

std::string FolderOf(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return ".";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace kvevict::llama_cli
#endif
