// Runs of `kvevict-llama-cli`.
#ifndef KVEVICT_TESTS_LLAMA_CPP_PROGRAM_H_
#define KVEVICT_TESTS_LLAMA_CPP_PROGRAM_H_

#include <criterion/criterion.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "tests/paths.h"

namespace kvevict::tests {

struct ProgramRun {
  int status;
  std::string out;  // with what it says on stderr
};

inline ProgramRun RunProgram(const std::string& arguments) {
  const std::string command =
      test_llama_program + std::string(" ") + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ProgramRun run{-1, ""};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) {
    run.out.append(buffer, n);
  }
  const int status = pclose(pipe);
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

// A run that works.
inline std::string OutputOf(const std::string& arguments) {
  const ProgramRun run = RunProgram(arguments);
  cr_assert(run.status == 0, "%s:\n%s", arguments.c_str(), run.out.c_str());
  return run.out;
}

// A run with this status says this.
inline void ExpectRun(const std::string& arguments, int status,
                      const char* part) {
  const ProgramRun run = RunProgram(arguments);
  cr_expect(run.status == status && run.out.find(part) != std::string::npos,
            "`%s`: %d, %s", arguments.c_str(), run.status, run.out.c_str());
}

inline bool Has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kvevict::tests

#endif  // KVEVICT_TESTS_LLAMA_CPP_PROGRAM_H_
