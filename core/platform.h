// What the library asks of the operating system beyond the C++ library. Texts are
// UTF-8. platform_posix.cc and platform_windows.cc are the answers; nothing else
// calls the system.
#ifndef KVEVICT_CORE_PLATFORM_H_
#define KVEVICT_CORE_PLATFORM_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvevict::platform {

// n_bytes is a multiple of the alignment. Null if there is no memory.
void* AllocateAligned(size_t alignment, size_t n_bytes);
void FreeAligned(void* memory);

uint64_t ProcessId();

// A shared library, which stays open. A name without folders is looked for where
// the system keeps libraries. Null, with the system's reason, if there is none.
void* OpenLibrary(const char* name, std::string* reason);
// Null if the library has no such symbol.
void* FindSymbol(void* library, const char* name);

// A folder whose files nobody but this user can write.
class PrivateFolder {
 public:
  PrivateFolder() = default;  // none
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  ~PrivateFolder();

  // Made, for this user alone, if its parent is there. False, with the reason, for
  // a folder of another user, or one that others may write to, or a link.
  bool Open(const std::string& path, std::string* reason);
  bool is_open() const { return folder_ != kNone; }

  // A plain file of the folder. False if there is none that is this user's alone,
  // or it has more than `most_bytes`.
  bool Read(const std::string& name, size_t most_bytes,
            std::string* bytes) const;
  // Writes `part`, a name that must not be there, and renames it: readers see the
  // old or the new file. False, with the reason, if that fails.
  bool Replace(const std::string& name, const std::string& part,
               const std::string& bytes, std::string* reason) const;

 private:
  static constexpr intptr_t kNone = -1;

  intptr_t folder_ = kNone;  // the system's handle
#ifdef _WIN32
  std::wstring path_;  // which the handle keeps from being renamed
#endif
};

}  // namespace kvevict::platform

#endif  // KVEVICT_CORE_PLATFORM_H_
