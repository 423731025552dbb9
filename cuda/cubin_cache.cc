#include "cuda/cubin_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "cuda/no_memory.h"

namespace kvevict::cuda {
namespace {

// An entry is this header and the image. The key stands inside as well, so that
// a renamed entry is foreign.
struct Header {
  char magic[16];
  Digest key;
  Digest image_hash;
  uint64_t n_bytes;
};
static_assert(sizeof(Header) == 88);

constexpr char kMagic[16] = "kvevict cubin 1";
constexpr uint64_t kMostBytes = 64 << 20;

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

Digest HashOf(const std::string& image) {
  Sha256 hash;
  hash.Add(image.data(), image.size());
  return hash.Finish();
}

std::string FileName(const Digest& key) { return Hex(key) + ".cubin"; }

}  // namespace

CubinCache::~CubinCache() {
  if (folder_ >= 0) close(folder_);
}

Status CubinCache::Open(const char* folder) {
  if (folder == nullptr || folder[0] == '\0') return Status();
  return WithoutThrowing("kernel_cache_dir", [&] {
    // A slash at the end would follow a symbolic link.
    std::string name = folder;
    while (name.size() > 1 && name.back() == '/') name.pop_back();
    return OpenFolder(name.c_str());
  });
}

Status CubinCache::OpenFolder(const char* folder) {
  if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
    return InvalidArgument("kernel_cache_dir %s: cannot be made: %s", folder,
                           std::strerror(errno));
  }
  const int opened =
      open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info {};
  if (opened < 0 || fstat(opened, &info) != 0) {
    const int error = errno;
    if (opened >= 0) close(opened);
    return InvalidArgument("kernel_cache_dir %s: not a folder of its own: %s",
                           folder, std::strerror(error));
  }
  if (!IsOursAlone(info)) {
    close(opened);
    return InvalidArgument(
        "kernel_cache_dir %s: owned by user %u with mode %03o; must be ours "
        "alone to write",
        folder, static_cast<unsigned>(info.st_uid),
        static_cast<unsigned>(info.st_mode & 07777));
  }
  folder_ = opened;
  return Status();
}

bool CubinCache::Load(const Digest& key, std::string* image) const {
  if (!is_on()) return false;
  // O_NONBLOCK: a named pipe in the entry's place would block the open.
  const File file(openat(folder_, FileName(key).c_str(),
                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!file.is_open() || fstat(file.get(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode) || !IsOursAlone(info)) return false;

  Header header;
  if (!ReadAll(file.get(), &header, sizeof(header))) return false;
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return false;
  if (header.key != key || header.n_bytes > kMostBytes) return false;
  if (static_cast<uint64_t>(info.st_size) != sizeof(header) + header.n_bytes) {
    return false;
  }
  image->resize(header.n_bytes);
  return ReadAll(file.get(), image->data(), image->size()) &&
         HashOf(*image) == header.image_hash;
}

bool CubinCache::Store(const Digest& key, const std::string& image,
                       std::string* reason) const {
  if (!is_on()) return true;
  Header header;
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.key = key;
  header.image_hash = HashOf(image);
  header.n_bytes = image.size();

  // A name that no other thread and process has, nor one that died before: in
  // containers process numbers come again.
  static std::atomic<unsigned> n_stored{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string name = FileName(key);
  const std::string part = name + "." + std::to_string(getpid()) + "." +
                           std::to_string(n_stored.fetch_add(1)) + "." +
                           std::to_string(now.count()) + ".part";
  const File file(openat(folder_, part.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0600));
  if (file.is_open() && WriteAll(file.get(), &header, sizeof(header)) &&
      WriteAll(file.get(), image.data(), image.size()) &&
      renameat(folder_, part.c_str(), folder_, name.c_str()) == 0) {
    return true;
  }
  *reason = std::strerror(errno);
  if (file.is_open()) unlinkat(folder_, part.c_str(), 0);
  return false;
}

}  // namespace kvevict::cuda
