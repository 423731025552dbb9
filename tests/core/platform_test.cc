// The library's use of the operating system, on any of them.
#include "core/platform.h"

#include <criterion/criterion.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#ifdef _WIN32
#include <windows.h>
// This must follow it.
#include <aclapi.h>
#endif

namespace kvevict::platform {
namespace {

namespace fs = std::filesystem;

fs::path PathOf(const std::string& text) {
  return std::u8string(text.begin(), text.end());
}

// An unused name in a folder for temporary files; removed at the end of the scope.
// It is not ASCII.
struct NewName {
  std::string text;

  NewName() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    text = fs::temp_directory_path().string() + "/kvevict-\xd0\xba\xc5\x8d-" +
           std::to_string(ProcessId()) + "-" + std::to_string(now.count());
  }
  ~NewName() { fs::remove_all(PathOf(text)); }
};

// Gives everybody the right to write.
void OpenToAll(const std::string& path) {
#ifdef _WIN32
  wchar_t everyone[] = L"Everyone";
  unsigned char sid[SECURITY_MAX_SID_SIZE];
  DWORD n = sizeof(sid);
  cr_assert(CreateWellKnownSid(WinWorldSid, nullptr, sid, &n));
  EXPLICIT_ACCESSW access = {};
  BuildExplicitAccessWithNameW(&access, everyone, GENERIC_ALL, SET_ACCESS,
                               SUB_CONTAINERS_AND_OBJECTS_INHERIT);
  BuildTrusteeWithSidW(&access.Trustee, sid);
  PACL list = nullptr;
  cr_assert(SetEntriesInAclW(1, &access, nullptr, &list) == ERROR_SUCCESS);
  std::wstring name = PathOf(path).wstring();
  cr_assert(SetNamedSecurityInfoW(name.data(), SE_FILE_OBJECT,
                                  DACL_SECURITY_INFORMATION, nullptr, nullptr,
                                  list, nullptr) == ERROR_SUCCESS);
  LocalFree(list);
#else
  fs::permissions(PathOf(path), fs::perms::all);
#endif
}

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(PathOf(path), std::ios::binary) << bytes;
}

Test(platform, memory_is_aligned) {
  for (const size_t alignment : {64, 256, 4096}) {
    void* const memory = AllocateAligned(alignment, 3 * alignment);
    cr_assert_not_null(memory);
    cr_expect_eq(reinterpret_cast<uintptr_t>(memory) % alignment, 0);
    FreeAligned(memory);
  }
  FreeAligned(nullptr);
}

Test(platform, a_private_folder_keeps_files) {
  const NewName name;
  std::string reason, bytes;
  const std::string binary("\r\n\0\x1a\xff", 5);
  for (int pass = 0; pass < 2; ++pass) {  // made, then found
    PrivateFolder folder;
    cr_assert(folder.Open(name.text + "/", &reason), "%s", reason.c_str());
    cr_expect_eq(folder.Read("a", 100, &bytes), pass == 1);
    cr_assert(folder.Replace("a", "part", binary, &reason), "%s",
              reason.c_str());
    cr_assert(folder.Read("a", 5, &bytes));
    cr_expect(bytes == binary);
    cr_expect_not(folder.Read("a", 4, &bytes));
    cr_assert(folder.Replace("a", "part", "", &reason), "%s", reason.c_str());
    cr_assert(folder.Read("a", 0, &bytes));
    cr_expect(bytes.empty());
    cr_expect_not(fs::exists(PathOf(name.text + "/part")));
  }
}

Test(platform, what_is_in_the_way_of_a_part_stays) {
  const NewName name;
  std::string reason, bytes;
  PrivateFolder folder;
  cr_assert(folder.Open(name.text, &reason), "%s", reason.c_str());
  cr_assert(folder.Replace("part", "other", "mine", &reason));
  cr_expect_not(folder.Replace("a", "part", "new", &reason));
  cr_expect_not(reason.empty());
  cr_assert(folder.Read("part", 100, &bytes));
  cr_expect(bytes == "mine");
}

Test(platform, a_folder_in_the_name_of_a_file_is_no_file) {
  const NewName name;
  std::string reason, bytes;
  PrivateFolder folder;
  cr_assert(folder.Open(name.text, &reason), "%s", reason.c_str());
  fs::create_directory(PathOf(name.text + "/a"));
  cr_expect_not(folder.Read("a", 100, &bytes));
  cr_expect_not(folder.Replace("a", "part", "new", &reason));
  cr_expect_not(fs::exists(PathOf(name.text + "/part")));
}

Test(platform, no_folder_without_a_parent_nor_in_place_of_a_file) {
  const NewName name;
  std::string reason;
  PrivateFolder folder;
  cr_expect_not(folder.Open(name.text + "/a", &reason));
  cr_expect(reason.find("cannot be made: No such file") == 0, "%s",
            reason.c_str());
  Write(name.text, "a file");
  cr_expect_not(folder.Open(name.text, &reason));
  cr_expect_not(reason.empty());
  cr_expect_not(folder.is_open());
}

Test(platform, folders_and_files_of_others_are_refused) {
  const NewName name;
  std::string reason, bytes;
  {
    PrivateFolder folder;
    cr_assert(folder.Open(name.text, &reason), "%s", reason.c_str());
    cr_assert(folder.Replace("a", "part", "bytes", &reason));
    OpenToAll(name.text + "/a");
    cr_expect_not(folder.Read("a", 100, &bytes));
  }
  OpenToAll(name.text);
  PrivateFolder folder;
  cr_expect_not(folder.Open(name.text, &reason));
  cr_expect(reason.find("only this user may") != std::string::npos, "%s",
            reason.c_str());
}

Test(platform, libraries_that_are_not_there) {
  for (const char* name : {"kvevict-no-such-library", "./no/such/library"}) {
    std::string reason;
    cr_expect_null(OpenLibrary(name, &reason));
    cr_expect(reason.find(name) != std::string::npos, "%s", reason.c_str());
  }
}

}  // namespace
}  // namespace kvevict::platform
