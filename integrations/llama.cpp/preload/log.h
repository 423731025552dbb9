// Messages of the preloaded library: refusals go to stderr, evictions where
// KVEVICT_LOG says.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_LOG_H_
#define KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_LOG_H_

#include <cstdio>
#include <cstdlib>
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
void Write(std::FILE* file, const Parts&... parts) {
  std::ostringstream text;
  text.precision(3);
  text << "kvevict: ";
  (text << ... << parts) << '\n';
  std::fputs(text.str().c_str(), file);
  std::fflush(file);
}

template <typename... Parts>
void Say(const Parts&... parts) {
  Write(stderr, parts...);
}

// KVEVICT_LOG: 1 is stderr; any other value is a file to which lines are
// appended.
template <typename... Parts>
void Log(const Parts&... parts) {
  static std::FILE* const file = []() -> std::FILE* {
    const char* const name = Setting("KVEVICT_LOG");
    if (name == nullptr || std::string_view(name) == "0") return nullptr;
    if (std::string_view(name) == "1") return stderr;
    return std::fopen(name, "a");
  }();
  if (file != nullptr) Write(file, parts...);
}

}  // namespace kvevict::llama_preload

#endif  // KVEVICT_INTEGRATIONS_LLAMA_PRELOAD_LOG_H_
