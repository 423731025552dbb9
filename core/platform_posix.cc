#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#if __has_include(<link.h>)
#include <link.h>
#endif

#include "core/platform.h"

namespace kvevict::platform {

// ---- Memory -----------------------------------------------------------------

void* AllocateAligned(size_t alignment, size_t n_bytes) {
  return std::aligned_alloc(alignment, n_bytes);
}

void FreeAligned(void* memory) { std::free(memory); }

uint64_t ProcessId() { return static_cast<uint64_t>(getpid()); }

// ---- Libraries --------------------------------------------------------------

namespace {

// A static program has no dynamic linker. A library that it opens would bring a
// second C library and crash.
bool IsStaticProgram() {
#ifdef PT_INTERP
  constexpr int kStatic = 1;
  constexpr int kDynamic = 2;
  const auto look = [](dl_phdr_info* program, size_t, void*) {
    // The program comes first and has no name, except in namespaces of dlmopen.
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

void* OpenLibrary(const char* name, std::string* reason) {
  if (IsStaticProgram()) {
    *reason = std::string(name) + ": a static program cannot open libraries";
    return nullptr;
  }
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* error = dlerror();
  *reason = error != nullptr ? error : name;
  return nullptr;
}

void* FindSymbol(void* library, const char* name) {
  return dlsym(library, name);
}

// ---- Files ------------------------------------------------------------------

namespace {

// A file descriptor, closed at the end of the scope.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

bool IsOursAlone(const struct stat& info) {
  return info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool ReadAll(int file, void* to, size_t n_bytes) {
  auto* bytes = static_cast<char*>(to);
  while (n_bytes > 0) {
    const ssize_t n = read(file, bytes, n_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    n_bytes -= n;
  }
  return true;
}

bool WriteAll(int file, const void* from, size_t n_bytes) {
  const auto* bytes = static_cast<const char*>(from);
  while (n_bytes > 0) {
    const ssize_t n = write(file, bytes, n_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    n_bytes -= n;
  }
  return true;
}

}  // namespace

PrivateFolder::~PrivateFolder() {
  if (is_open()) close(static_cast<int>(folder_));
}

bool PrivateFolder::Open(const std::string& path, std::string* reason) {
  // With a slash at the end, open would follow a symbolic link.
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  if (mkdir(name.c_str(), 0700) != 0 && errno != EEXIST) {
    *reason = std::string("cannot be made: ") + std::strerror(errno);
    return false;
  }
  const int opened =
      open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info {};
  if (opened < 0 || fstat(opened, &info) != 0) {
    *reason = std::string("not a folder of its own: ") + std::strerror(errno);
    if (opened >= 0) close(opened);
    return false;
  }
  if (!IsOursAlone(info)) {
    close(opened);
    char text[96];
    std::snprintf(
        text, sizeof(text),
        "owned by user %u with mode %03o; only this user may own and write it",
        static_cast<unsigned>(info.st_uid),
        static_cast<unsigned>(info.st_mode & 07777));
    *reason = text;
    return false;
  }
  folder_ = opened;
  return true;
}

bool PrivateFolder::Read(const std::string& name, size_t most_bytes,
                         std::string* bytes) const {
  // O_NONBLOCK because a named pipe in the file's place would block the open.
  const File file(openat(static_cast<int>(folder_), name.c_str(),
                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!file.is_open() || fstat(file.get(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode) || !IsOursAlone(info)) return false;
  if (static_cast<uint64_t>(info.st_size) > most_bytes) return false;
  bytes->resize(static_cast<size_t>(info.st_size));
  return ReadAll(file.get(), bytes->data(), bytes->size());
}

bool PrivateFolder::Replace(const std::string& name, const std::string& part,
                            const std::string& bytes,
                            std::string* reason) const {
  const int folder = static_cast<int>(folder_);
  const File file(openat(folder, part.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0600));
  if (file.is_open() && WriteAll(file.get(), bytes.data(), bytes.size()) &&
      renameat(folder, part.c_str(), folder, name.c_str()) == 0) {
    return true;
  }
  *reason = std::strerror(errno);
  if (file.is_open()) unlinkat(folder, part.c_str(), 0);
  return false;
}

}  // namespace kvevict::platform
