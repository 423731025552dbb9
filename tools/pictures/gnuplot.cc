#include "tools/pictures/gnuplot.h"

#include <cstdio>
#include <stdexcept>

#ifdef _WIN32
#define popen _popen
#define pclose _pclose
#endif

namespace kvevict::tools {

std::string GnuplotText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

std::string GnuplotVersion() {
  FILE* const pipe = popen("gnuplot --version 2>&1", "r");
  if (pipe == nullptr) return "";
  char line[128] = "";
  const bool read = fgets(line, sizeof line, pipe) != nullptr;
  const bool worked = pclose(pipe) == 0;
  std::string version = read && worked ? line : "";
  while (!version.empty() && version.back() == '\n') version.pop_back();
  return version.starts_with("gnuplot") ? version : "";
}

void RunGnuplot(const std::string& script) {
  FILE* const pipe = popen("gnuplot", "w");
  if (pipe == nullptr) throw std::runtime_error("gnuplot cannot be started");
  const bool written =
      fwrite(script.data(), 1, script.size(), pipe) == script.size();
  if (pclose(pipe) != 0 || !written) {
    throw std::runtime_error("gnuplot failed; its message is above");
  }
}

}  // namespace kvevict::tools
