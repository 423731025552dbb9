// What the library needs from the operating system beyond the C++ library.
// Texts are UTF-8. platform_posix.cc, platform_windows.cc and
// platform_wasi.cc implement it; nothing else calls the system.
#ifndef KVEVICT_CORE_PLATFORM_H_
#define KVEVICT_CORE_PLATFORM_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvevict::platform {

// n_bytes is a multiple of the alignment. Returns null if there is no memory.
void* AllocateAligned(size_t alignment, size_t n_bytes);
void FreeAligned(void* memory);

uint64_t ProcessId();

// Opens a shared library, which stays open. A name without folders is searched
// for where the system keeps libraries. Returns null, with the system's reason,
// if there is none.
void* OpenLibrary(const char* name, std::string* reason);
// Returns null if the library has no such symbol.
void* FindSymbol(void* library, const char* name);

// A folder whose files only this user can write.
class PrivateFolder {
 public:
  PrivateFolder() = default;  // not open
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  ~PrivateFolder();

  // Opens the folder. If it is missing but its parent exists, creates it for
  // this user alone. Returns false, with the reason, for a link, a folder of
  // another user, or one that others may write to.
  bool Open(const std::string& path, std::string* reason);
  bool is_open() const { return folder_ != kNone; }

  // Reads a plain file of the folder. Returns false if there is none that is
  // this user's alone, or if it has more than `most_bytes`.
  bool Read(const std::string& name, size_t most_bytes,
            std::string* bytes) const;
  // Writes `part`, a name that must not exist, and renames it: readers see the
  // old or the new file. Returns false, with the reason, on failure.
  bool Replace(const std::string& name, const std::string& part,
               const std::string& bytes, std::string* reason) const;

 private:
  static constexpr intptr_t kNone = -1;

  intptr_t folder_ = kNone;  // the system's handle
#ifdef _WIN32
  std::wstring path_;  // the open handle prevents renaming it
#endif
};

}  // namespace kvevict::platform

#endif  // KVEVICT_CORE_PLATFORM_H_
