// Stops a parse or a launch with a sentence that names the line of the PTX.
#ifndef KVEVICT_TESTS_RIG_PTX_ERROR_H_
#define KVEVICT_TESTS_RIG_PTX_ERROR_H_

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace kvevict::ptx {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void Fail(const std::string& what) { throw Error(what); }

[[noreturn]] inline void FailAt(uint32_t line, const std::string& what) {
  Fail("line " + std::to_string(line) + ": " + what);
}

inline std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof(text), "0x%llx",
                static_cast<unsigned long long>(value));
  return text;
}

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_ERROR_H_
