#include "core/platform.h"

#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
// These must follow windows.h.
#include <aclapi.h>
#include <malloc.h>
#include <sddl.h>

#include <cstring>
#include <memory>
#include <utility>

namespace kvevict::platform {

// ---- Memory -----------------------------------------------------------------

void* AllocateAligned(size_t alignment, size_t n_bytes) {
  return _aligned_malloc(n_bytes, alignment);
}

void FreeAligned(void* memory) { _aligned_free(memory); }

uint64_t ProcessId() { return GetCurrentProcessId(); }

namespace {

// The system's texts are in the user's language and code page, but our messages
// are ASCII.
std::string ErrorText(DWORD error) {
  const char* name = nullptr;
  switch (error) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_MOD_NOT_FOUND:
      name = "No such file";
      break;
    case ERROR_ACCESS_DENIED:
      name = "access denied";
      break;
    case ERROR_BAD_EXE_FORMAT:
      name = "not a library for this processor";
      break;
    case ERROR_DISK_FULL:
      name = "the disk is full";
      break;
    case ERROR_DIRECTORY:
      name = "not a folder";
      break;
  }
  const std::string number = "error " + std::to_string(error);
  return name == nullptr ? number : std::string(name) + " (" + number + ")";
}

// Returns an empty text if `text` is not UTF-8.
std::wstring Wide(const std::string& text) {
  const int n = static_cast<int>(text.size());
  const auto convert = [&](wchar_t* to, int n_wide) {
    return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), n,
                               to, n_wide);
  };
  std::wstring wide(n == 0 ? 0 : convert(nullptr, 0), L'\0');
  if (!wide.empty()) convert(wide.data(), static_cast<int>(wide.size()));
  return wide;
}

}  // namespace

// ---- Libraries --------------------------------------------------------------

void* OpenLibrary(const char* name, std::string* reason) {
  const std::wstring wide = Wide(name);
  void* library = nullptr;
  SetLastError(ERROR_MOD_NOT_FOUND);
  if (wide.find_first_of(L"\\/:") != std::wstring::npos) {
    wchar_t full[4096];
    const DWORD n = GetFullPathNameW(wide.c_str(), 4096, full, nullptr);
    // Searches the library's own folder for the libraries that it needs.
    if (n > 0 && n < 4096) {
      library = LoadLibraryExW(full, nullptr, LOAD_WITH_ALTERED_SEARCH_PATH);
    }
  } else if (!wide.empty()) {
    // Searches the program's folder and the system's libraries, not the current
    // folder. Then searches PATH, which CUDA's installer sets.
    library =
        LoadLibraryExW(wide.c_str(), nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
    wchar_t folders[32767], found[4096];
    if (library == nullptr &&
        GetEnvironmentVariableW(L"PATH", folders, 32767)) {
      const DWORD n =
          SearchPathW(folders, wide.c_str(), nullptr, 4096, found, nullptr);
      if (n > 0 && n < 4096) {
        library = LoadLibraryExW(found, nullptr, LOAD_WITH_ALTERED_SEARCH_PATH);
      } else {
        SetLastError(ERROR_MOD_NOT_FOUND);
      }
    }
  }
  if (library == nullptr) {
    *reason = std::string(name) + ": " + ErrorText(GetLastError());
  }
  return library;
}

void* FindSymbol(void* library, const char* name) {
  return reinterpret_cast<void*>(
      GetProcAddress(static_cast<HMODULE>(library), name));
}

// ---- Files ------------------------------------------------------------------

namespace {

struct LocalFreer {
  void operator()(void* memory) const { LocalFree(memory); }
};
using Local = std::unique_ptr<void, LocalFreer>;

// A handle, closed at the end of the scope.
class File {
 public:
  explicit File(HANDLE handle) : handle_(handle) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { Close(); }

  bool is_open() const { return handle_ != INVALID_HANDLE_VALUE; }
  HANDLE get() const { return handle_; }
  HANDLE Release() { return std::exchange(handle_, INVALID_HANDLE_VALUE); }
  void Close() {
    if (is_open()) CloseHandle(Release());
  }

 private:
  HANDLE handle_;
};

// The user who runs this process.
class User {
 public:
  User() {
    HANDLE token = nullptr;
    if (!OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token)) return;
    DWORD n = 0;
    known_ = GetTokenInformation(token, TokenUser, bytes_, sizeof(bytes_), &n);
    CloseHandle(token);
  }

  bool is_known() const { return known_; }
  PSID sid() const {
    return reinterpret_cast<const TOKEN_USER*>(bytes_)->User.Sid;
  }

  // Accounts that may write to all files whatever their permissions say.
  static bool IsSystem(PSID sid) {
    return IsWellKnownSid(sid, WinBuiltinAdministratorsSid) ||
           IsWellKnownSid(sid, WinLocalSystemSid);
  }
  bool IsTrusted(PSID sid) const {
    return (known_ && EqualSid(sid, this->sid())) || IsSystem(sid);
  }

 private:
  alignas(TOKEN_USER) unsigned char bytes_[sizeof(TOKEN_USER) +
                                           SECURITY_MAX_SID_SIZE] = {};
  bool known_ = false;
};

// The rights that let others change a file or folder.
constexpr DWORD kWrites = GENERIC_ALL | GENERIC_WRITE | FILE_WRITE_DATA |
                          FILE_APPEND_DATA | FILE_DELETE_CHILD | DELETE |
                          WRITE_DAC | WRITE_OWNER;

// Whether only this user and the system own the file or may write to it.
bool IsOursAlone(HANDLE handle) {
  const User user;
  PSID owner = nullptr;
  PACL list = nullptr;
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (GetSecurityInfo(handle, SE_FILE_OBJECT,
                      OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION,
                      &owner, nullptr, &list, nullptr,
                      &descriptor) != ERROR_SUCCESS) {
    return false;
  }
  const Local kept(descriptor);
  // Without an access list everybody may do everything.
  if (owner == nullptr || list == nullptr || !user.IsTrusted(owner)) {
    return false;
  }
  for (DWORD i = 0; i < list->AceCount; ++i) {
    void* entry = nullptr;
    if (!GetAce(list, i, &entry)) return false;
    const auto* allowed = static_cast<const ACCESS_ALLOWED_ACE*>(entry);
    if (allowed->Header.AceType == ACCESS_DENIED_ACE_TYPE) continue;
    // Entries with conditions or object types are not understood, so they are
    // refused.
    if (allowed->Header.AceType != ACCESS_ALLOWED_ACE_TYPE) return false;
    if ((allowed->Header.AceFlags & INHERIT_ONLY_ACE) != 0) continue;
    PSID sid = const_cast<DWORD*>(&allowed->SidStart);
    if ((allowed->Mask & kWrites) != 0 && !user.IsTrusted(sid)) return false;
  }
  return true;
}

// Permissions for the user, the system and administrators only. In a folder
// they are inherited.
Local OnlyForUs(const wchar_t* inherited) {
  const User user;
  wchar_t* sid = nullptr;
  if (!user.is_known() || !ConvertSidToStringSidW(user.sid(), &sid)) return {};
  const Local kept(sid);
  std::wstring text = std::wstring(L"O:") + sid + L"D:P";
  for (const wchar_t* who : {static_cast<const wchar_t*>(sid), L"SY", L"BA"}) {
    text += std::wstring(L"(A;") + inherited + L";FA;;;" + who + L")";
  }
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (!ConvertStringSecurityDescriptorToSecurityDescriptorW(
          text.c_str(), SDDL_REVISION_1, &descriptor, nullptr)) {
    return {};
  }
  return Local(descriptor);
}

bool IsLink(const BY_HANDLE_FILE_INFORMATION& info) {
  return (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0;
}

bool IsFolder(const BY_HANDLE_FILE_INFORMATION& info) {
  return (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
}

}  // namespace

PrivateFolder::~PrivateFolder() {
  if (is_open()) CloseHandle(reinterpret_cast<HANDLE>(folder_));
}

bool PrivateFolder::Open(const std::string& path, std::string* reason) {
  std::wstring name = Wide(path);
  while (name.size() > 1 && (name.back() == L'/' || name.back() == L'\\') &&
         name[name.size() - 2] != L':') {
    name.pop_back();
  }
  const Local only_for_us = OnlyForUs(L"OICI");
  SECURITY_ATTRIBUTES security = {sizeof(security), only_for_us.get(), FALSE};
  if (name.empty() || only_for_us == nullptr ||
      (!CreateDirectoryW(name.c_str(), &security) &&
       GetLastError() != ERROR_ALREADY_EXISTS)) {
    *reason = "cannot be made: " +
              (name.empty() ? "not UTF-8" : ErrorText(GetLastError()));
    return false;
  }
  // Nobody may delete or rename the folder while it is open.
  File folder(CreateFileW(
      name.c_str(), FILE_LIST_DIRECTORY | READ_CONTROL,
      FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr, OPEN_EXISTING,
      FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT, nullptr));
  BY_HANDLE_FILE_INFORMATION info = {};
  const bool known =
      folder.is_open() && GetFileInformationByHandle(folder.get(), &info);
  if (!known || IsLink(info) || !IsFolder(info)) {
    *reason = "not a folder of its own: " + (!known ? ErrorText(GetLastError())
                                             : IsLink(info) ? "a link"
                                                            : "a file");
    return false;
  }
  if (!IsOursAlone(folder.get())) {
    *reason = "others own it or may write to it; only this user may";
    return false;
  }
  folder_ = reinterpret_cast<intptr_t>(folder.Release());
  path_ = name + L"\\";
  return true;
}

bool PrivateFolder::Read(const std::string& name, size_t most_bytes,
                         std::string* bytes) const {
  const File file(CreateFileW(
      (path_ + Wide(name)).c_str(), GENERIC_READ | READ_CONTROL,
      FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
      OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, nullptr));
  BY_HANDLE_FILE_INFORMATION info = {};
  if (!file.is_open() || GetFileType(file.get()) != FILE_TYPE_DISK ||
      !GetFileInformationByHandle(file.get(), &info) || IsLink(info) ||
      IsFolder(info) || !IsOursAlone(file.get())) {
    return false;
  }
  const uint64_t size =
      (uint64_t{info.nFileSizeHigh} << 32) | info.nFileSizeLow;
  if (size > most_bytes || size > MAXDWORD) return false;
  bytes->resize(size);
  DWORD n = 0;
  return ReadFile(file.get(), bytes->data(), static_cast<DWORD>(size), &n,
                  nullptr) &&
         n == size;
}

bool PrivateFolder::Replace(const std::string& name, const std::string& part,
                            const std::string& bytes,
                            std::string* reason) const {
  const std::wstring part_path = path_ + Wide(part);
  const Local only_for_us = OnlyForUs(L"");
  SECURITY_ATTRIBUTES security = {sizeof(security), only_for_us.get(), FALSE};
  File file(CreateFileW(part_path.c_str(), GENERIC_WRITE, 0, &security,
                        CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr));
  const bool made = file.is_open();
  DWORD n = 0;
  bool done = made && only_for_us != nullptr && bytes.size() <= MAXDWORD &&
              WriteFile(file.get(), bytes.data(),
                        static_cast<DWORD>(bytes.size()), &n, nullptr) &&
              n == bytes.size();
  DWORD error = GetLastError();
  file.Close();  // an open file cannot be renamed
  if (done) {
    done = MoveFileExW(part_path.c_str(), (path_ + Wide(name)).c_str(),
                       MOVEFILE_REPLACE_EXISTING);
    error = GetLastError();
  }
  if (done) return true;
  *reason = ErrorText(error);
  if (made) DeleteFileW(part_path.c_str());
  return false;
}

}  // namespace kvevict::platform
