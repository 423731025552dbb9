// Runs the program kvevict.
#ifndef KVEVICT_TESTS_TOOLS_PROGRAM_H_
#define KVEVICT_TESTS_TOOLS_PROGRAM_H_

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/expect_part.h"
#include "tests/paths.h"

namespace kvevict::tools {

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

inline std::string ReadAndRemove(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  unlink(path.c_str());
  return text;
}

inline std::string TemporaryFile() {
  char path[] = "/tmp/kvevict-test-XXXXXX";
  close(mkstemp(path));
  return path;
}

// Standard output goes to `to`, or is read.
inline Outcome Run(const std::string& arguments, const std::string& to = "") {
  const std::string out = TemporaryFile();
  const std::string err = TemporaryFile();
  const std::string command = test_program + std::string(" ") + arguments +
                              (to.empty() ? " >" + out : to) + " 2>" + err;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadAndRemove(out),
          ReadAndRemove(err)};
}

// What a command that works prints.
inline nlohmann::json JsonOf(const std::string& arguments) {
  const Outcome run = Run(arguments);
  cr_assert(run.status == 0, "`%s`: %s", arguments.c_str(), run.err.c_str());
  return nlohmann::json::parse(run.out);
}

using tests::ExpectPart;

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_PROGRAM_H_
