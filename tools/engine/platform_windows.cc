#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
// These must follow windows.h.
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <shellapi.h>

#include <cstdio>
#include <stdexcept>

#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

std::string Narrow(const wchar_t* wide) {
  const auto convert = [&](char* to, int n) {
    return WideCharToMultiByte(CP_UTF8, 0, wide, -1, to, n, nullptr, nullptr);
  };
  std::string text(static_cast<size_t>(convert(nullptr, 0)), '\0');
  convert(text.data(), static_cast<int>(text.size()));
  text.pop_back();  // the zero
  return text;
}

[[noreturn]] void Fail(const std::string& path, DWORD error) {
  const char* reason =
      error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND
          ? "No such file or directory"
      : error == ERROR_ACCESS_DENIED ? "Permission denied"
                                     : nullptr;
  throw std::runtime_error(path + ": " +
                           (reason != nullptr
                                ? std::string(reason)
                                : "error " + std::to_string(error)));
}

struct Handle {
  HANDLE handle;
  ~Handle() {
    if (handle != nullptr && handle != INVALID_HANDLE_VALUE) {
      CloseHandle(handle);
    }
  }
};

// The mode of a console; 0 for a file or a pipe.
DWORD ConsoleMode(HANDLE output) {
  DWORD mode = 0;
  return GetConsoleMode(output, &mode) ? mode | ENABLE_PROCESSED_OUTPUT : 0;
}

// Whether an output accepts the control sequences of terminals.
bool TakesSequences(DWORD of) {
  const HANDLE output = GetStdHandle(of);
  const DWORD mode = ConsoleMode(output);
  return mode != 0 &&
         SetConsoleMode(output, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
}

}  // namespace

void* AllocateAligned(size_t alignment, size_t n_bytes) {
  return _aligned_malloc(n_bytes, alignment);
}

void FreeAligned(void* memory) { _aligned_free(memory); }

void PreferLargePages(void*, size_t) {}  // needs a privilege

Mapping MapFile(const std::string& path) {
  const Handle file{CreateFileW(PathOf(path).c_str(), GENERIC_READ,
                                FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr)};
  if (file.handle == INVALID_HANDLE_VALUE) Fail(path, GetLastError());
  LARGE_INTEGER size;
  if (GetFileType(file.handle) != FILE_TYPE_DISK ||
      !GetFileSizeEx(file.handle, &size)) {
    throw std::runtime_error(path + ": not a regular file");
  }
  if (size.QuadPart == 0) return {};
  const Handle mapping{
      CreateFileMappingW(file.handle, nullptr, PAGE_READONLY, 0, 0, nullptr)};
  if (mapping.handle == nullptr) Fail(path, GetLastError());
  // The view outlives both handles.
  const void* data = MapViewOfFile(mapping.handle, FILE_MAP_READ, 0, 0, 0);
  if (data == nullptr) Fail(path, GetLastError());
  return {static_cast<const uint8_t*>(data),
          static_cast<size_t>(size.QuadPart)};
}

void UnmapFile(const Mapping& mapping) {
  if (mapping.data != nullptr) UnmapViewOfFile(mapping.data);
}

// The arguments of main() have passed through the user's code page, so they are
// not used.
std::vector<std::string> ProgramArguments(int argc, char** argv) {
  int n = 0;
  wchar_t** const wide = CommandLineToArgvW(GetCommandLineW(), &n);
  if (wide == nullptr) return {argv, argv + argc};
  std::vector<std::string> arguments(n);
  for (int i = 0; i < n; ++i) arguments[i] = Narrow(wide[i]);
  LocalFree(wide);
  return arguments;
}

std::filesystem::path PathOf(std::string_view text) {
  return std::u8string(text.begin(), text.end());
}

std::string TextOf(const std::filesystem::path& path) {
  return Narrow(path.c_str());
}

void PrepareOutput() {
  // Writes no "\r" before "\n".
  _setmode(_fileno(stdout), _O_BINARY);
  _setmode(_fileno(stderr), _O_BINARY);
  SetConsoleOutputCP(CP_UTF8);
  TakesSequences(STD_OUTPUT_HANDLE);
  TakesSequences(STD_ERROR_HANDLE);
}

bool ErrorIsTerminal() { return TakesSequences(STD_ERROR_HANDLE); }

// Every write has already reported errors.
bool OutputArrives() { return true; }

}  // namespace kvevict::tools
