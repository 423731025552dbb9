// What the program asks of the operating system: answered by platform_posix.cc and
// platform_windows.cc.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_PLATFORM_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_PLATFORM_H_

#include <cstdint>
#include <string>

namespace kvevict::llama_cli {

// Bytes that the process has in memory, once the allocator has given back what is free;
// 0: the system does not say.
uint64_t ResidentBytes();

// Of the library or program that a function is in; "." if that is not known.
std::string FolderOf(const void* function);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_PLATFORM_H_
