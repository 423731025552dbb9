// What the program needs from the operating system, implemented by
// platform_posix.cc and platform_windows.cc.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_PLATFORM_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_PLATFORM_H_

#include <cstdint>
#include <string>

namespace kvevict::llama_cli {

// Bytes that the process has in memory after the allocator has given back free
// memory; 0: the system does not say.
uint64_t ResidentBytes();

// The most that the process has had in memory so far; 0: the system does not
// say.
uint64_t PeakBytes();

// The folder of the library or program that contains a function; "." if
// unknown.
std::string FolderOf(const void* function);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_PLATFORM_H_
