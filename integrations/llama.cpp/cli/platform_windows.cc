#ifdef _WIN32
#include <windows.h>
// Must follow windows.h.
#include <psapi.h>

#include "platform.h"

namespace kvevict::llama_cli {

namespace {

PROCESS_MEMORY_COUNTERS Memory() {
  PROCESS_MEMORY_COUNTERS counters = {};
  if (!K32GetProcessMemoryInfo(GetCurrentProcess(), &counters,
                               sizeof counters)) {
    return {};
  }
  return counters;
}

}  // namespace

uint64_t ResidentBytes() { return Memory().WorkingSetSize; }

uint64_t PeakBytes() { return Memory().PeakWorkingSetSize; }

std::string FolderOf(const void* function) {
  HMODULE module = nullptr;
  char path[MAX_PATH] = "";
  if (!GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS |
                              GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                          static_cast<LPCSTR>(function), &module) ||
      GetModuleFileNameA(module, path, sizeof path) == 0) {
    return ".";
  }
  const std::string text = path;
  const size_t slash = text.find_last_of("/\\");
  return slash == std::string::npos ? "." : text.substr(0, slash);
}

}  // namespace kvevict::llama_cli
#endif
