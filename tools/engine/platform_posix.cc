#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* reason) {
  throw std::runtime_error(path + ": " + reason);
}

// Closes the descriptor on every exit; the mapping outlives it.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

void* AllocateAligned(size_t alignment, size_t n_bytes) {
  return std::aligned_alloc(alignment, n_bytes);
}

void FreeAligned(void* memory) { std::free(memory); }

void PreferLargePages([[maybe_unused]] void* memory,
                      [[maybe_unused]] size_t n_bytes) {
#ifdef MADV_HUGEPAGE
  madvise(memory, n_bytes, MADV_HUGEPAGE);
#endif
}

Mapping MapFile(const std::string& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) Fail(path, std::strerror(errno));
  struct stat info;
  if (fstat(file.fd, &info) != 0) Fail(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) Fail(path, "not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return {};
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) Fail(path, std::strerror(errno));
  return {static_cast<const uint8_t*>(mapped), size};
}

void UnmapFile(const Mapping& mapping) {
  if (mapping.data == nullptr) return;
  munmap(const_cast<uint8_t*>(mapping.data), mapping.size);
}

std::vector<std::string> ProgramArguments(int argc, char** argv) {
  return {argv, argv + argc};
}

std::filesystem::path PathOf(std::string_view text) { return text; }
std::string TextOf(const std::filesystem::path& path) { return path.string(); }

void PrepareOutput() {
  // A closed pipe is an error like any other.
  std::signal(SIGPIPE, SIG_IGN);
}

bool ErrorIsTerminal() { return isatty(STDERR_FILENO) == 1; }

bool OutputArrives() {
  // Some files report that they are full only when they are closed.
  const int copy = dup(STDOUT_FILENO);
  return copy >= 0 && close(copy) == 0;
}

}  // namespace kvevict::tools
