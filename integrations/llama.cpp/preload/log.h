// What the hooks say: refusals on stderr, evictions where KVEVICT_LOG asks for them; or
// all of it to a function that the program has set.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_LOG_H_
#define KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_LOG_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace kvevict::llama_preload {

// A variable of the environment; NULL if it is empty.
inline const char* Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  text.precision(3);
  text << "kvevict: ";
  (text << ... << parts) << '\n';
  return text.str();
}

// Receives each line instead of the files; NULL: none.
using Sink = void (*)(const char* line, int32_t is_eviction);
inline std::atomic<Sink> sink = nullptr;

inline void Write(std::FILE* file, const std::string& line) {
  std::fputs(line.c_str(), file);
  std::fflush(file);
}

template <typename... Parts>
void Say(const Parts&... parts) {
  const std::string line = Text(parts...);
  if (const Sink write = sink.load()) return write(line.c_str(), 0);
  Write(stderr, line);
}

inline bool IsNew(const std::string& line) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  return said.insert(line).second;
}

// Says a sentence about the process or a context. Programs may make a context to try it,
// and then make it again.
template <typename... Parts>
void SayOnce(const Parts&... parts) {
  if (IsNew(Text(parts...))) Say(parts...);
}

// The file that KVEVICT_LOG names: 1 is stderr, another word a file that grows.
inline std::FILE* LogFile() {
  static std::FILE* const file = []() -> std::FILE* {
    const char* const name = Setting("KVEVICT_LOG");
    if (name == nullptr || std::string_view(name) == "0") return nullptr;
    if (std::string_view(name) == "1") return stderr;
    std::FILE* const opened = std::fopen(name, "a");
    if (opened == nullptr) Say("KVEVICT_LOG=", name, " cannot be written to");
    return opened;
  }();
  return file;
}

template <typename... Parts>
void Log(const Parts&... parts) {
  if (const Sink write = sink.load()) return write(Text(parts...).c_str(), 1);
  if (std::FILE* const file = LogFile()) Write(file, Text(parts...));
}

}  // namespace kvevict::llama_preload

#endif  // KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_LOG_H_
