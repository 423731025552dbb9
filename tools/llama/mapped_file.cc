#include "tools/llama/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace kvevict::tools {
namespace {

[[noreturn]] void Fail(const std::string& path, const char* reason) {
  throw std::runtime_error(path + ": " + reason);
}

// Closes on every way out; the mapping outlives the descriptor.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) Fail(path, std::strerror(errno));
  struct stat info;
  if (fstat(file.fd, &info) != 0) Fail(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) Fail(path, "not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) Fail(path, std::strerror(errno));
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace kvevict::tools
