#include "cuda/cubin_cache.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "cuda/no_memory.h"

namespace kvevict::cuda {
namespace {

// An entry is this header and the image. The header contains the key, so that a
// renamed entry is detected.
struct Header {
  char magic[16];
  Digest key;
  Digest image_hash;
  uint64_t n_bytes;
};
static_assert(sizeof(Header) == 88);

constexpr char kMagic[16] = "kvevict cubin 1";
constexpr uint64_t kMostBytes = 64 << 20;

Digest HashOf(const std::string& image) {
  Sha256 hash;
  hash.Add(image.data(), image.size());
  return hash.Finish();
}

std::string FileName(const Digest& key) { return Hex(key) + ".cubin"; }

}  // namespace

Status CubinCache::Open(const char* folder) {
  if (folder == nullptr || folder[0] == '\0') return Status();
  return WithoutThrowing("kernel_cache_dir", [&] {
    std::string reason;
    if (folder_.Open(folder, &reason)) return Status();
    return InvalidArgument("kernel_cache_dir %s: %s", folder, reason.c_str());
  });
}

bool CubinCache::Load(const Digest& key, std::string* image) const {
  if (!is_on()) return false;
  std::string entry;
  if (!folder_.Read(FileName(key), sizeof(Header) + kMostBytes, &entry) ||
      entry.size() < sizeof(Header)) {
    return false;
  }
  Header header;
  std::memcpy(&header, entry.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return false;
  if (header.key != key) return false;
  if (entry.size() - sizeof(header) != header.n_bytes) return false;
  *image = entry.substr(sizeof(header));
  return HashOf(*image) == header.image_hash;
}

bool CubinCache::Store(const Digest& key, const std::string& image,
                       std::string* reason) const {
  if (!is_on()) return true;
  Header header;
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.key = key;
  header.image_hash = HashOf(image);
  header.n_bytes = image.size();
  const std::string entry(reinterpret_cast<const char*>(&header),
                          sizeof(header));

  // A name that no other thread or process uses, nor one that has died: in
  // containers process numbers repeat.
  static std::atomic<unsigned> n_stored{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string name = FileName(key);
  const std::string part = name + "." + std::to_string(platform::ProcessId()) +
                           "." + std::to_string(n_stored.fetch_add(1)) + "." +
                           std::to_string(now.count()) + ".part";
  return folder_.Replace(name, part, entry + image, reason);
}

}  // namespace kvevict::cuda
