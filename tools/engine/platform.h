// What the program needs from the operating system beyond the C++ library,
// implemented by platform_posix.cc and platform_windows.cc. Texts are UTF-8.
#ifndef KVEVICT_TOOLS_ENGINE_PLATFORM_H_
#define KVEVICT_TOOLS_ENGINE_PLATFORM_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvevict::tools {

// n_bytes is a multiple of the alignment. Returns null if there is no memory.
void* AllocateAligned(size_t alignment, size_t n_bytes);
void FreeAligned(void* memory);
// Makes long, strided reads cheaper, if the system can.
void PreferLargePages(void* memory, size_t n_bytes);

// A file mapped read-only. Throws std::runtime_error naming the path and the
// reason; null and 0 for an empty file.
struct Mapping {
  const uint8_t* data = nullptr;
  size_t size = 0;
};
Mapping MapFile(const std::string& path);
void UnmapFile(const Mapping& mapping);

// The arguments of main().
std::vector<std::string> ProgramArguments(int argc, char** argv);
// The path of a file that arguments or other texts name.
std::filesystem::path PathOf(std::string_view text);
std::string TextOf(const std::filesystem::path& path);

// Makes standard output and error show UTF-8 and colours, and pass on bytes as
// they are.
void PrepareOutput();
// Whether standard error is a terminal.
bool ErrorIsTerminal();
// Whether all that was written to standard output can arrive. If not, errno
// says why.
bool OutputArrives();

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_PLATFORM_H_
