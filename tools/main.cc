// kvevict: shows what the library does.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/commands/commands.h"
#include "tools/commands/output.h"
#include "tools/engine/evictor.h"
#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

// What the command line parser has to say for itself.
int Explain(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const int status = app.exit(error, out, err);
  std::fputs(err.str().c_str(), stderr);
  WriteOutput(out.str());
  return status == 0 ? 0 : kUsageError;
}

int Run(int argc, char** argv) {
  CLI::App app;
  Action action;
  AddCommands(app, action);
  const std::vector<std::string> arguments = ProgramArguments(argc, argv);
  std::vector<const char*> texts;
  for (const std::string& text : arguments) texts.push_back(text.c_str());
  argc = static_cast<int>(texts.size());
  try {
    app.parse(argc, texts.data());
  } catch (const CLI::Success& help_or_version) {
    // No help with what is not there: "kvevict no-such-verb --help".
    constexpr bool kOfVerbsToo = true;
    if (app.remaining_size(kOfVerbsToo) == 0) {
      return Explain(app, help_or_version);
    }
    return Explain(app, CLI::ExtrasError(app.remaining(kOfVerbsToo)));
  } catch (const CLI::ParseError& error) {
    return Explain(app, error);
  }
  if (!action) {
    std::fputs(app.help().c_str(), stderr);
    return kUsageError;
  }
  WriteOutput(action());
  return 0;
}

int Fail(const std::exception& error, int status) {
  std::fprintf(stderr, "kvevict: %s\n", error.what());
  return status;
}

}  // namespace
}  // namespace kvevict::tools

int main(int argc, char** argv) {
  using namespace kvevict::tools;
  PrepareOutput();
  try {
    return Run(argc, argv);
  } catch (const KvevictError& error) {
    // What the library finds wrong came from the command line.
    return Fail(error, error.status == KVEVICT_ERROR_INVALID_ARGUMENT
                           ? kUsageError
                           : 1);
  } catch (const std::invalid_argument& error) {
    return Fail(error, kUsageError);
  } catch (const std::exception& error) {
    return Fail(error, 1);
  }
}
