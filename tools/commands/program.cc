#include "tools/commands/program.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <sstream>

#include "tools/commands/commands.h"
#include "tools/commands/output.h"

namespace kvevict::tools {
namespace {

// Prints the messages of the command line parser.
int Explain(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const int status = app.exit(error, out, err);
  std::fputs(err.str().c_str(), stderr);
  WriteOutput(out.str());
  return status == 0 ? 0 : kUsageError;
}

}  // namespace

int RunProgram(const std::vector<std::string>& arguments) {
  CLI::App app;
  Action action;
  AddCommands(app, action);
  std::vector<const char*> texts;
  texts.reserve(arguments.size());
  for (const std::string& text : arguments) texts.push_back(text.c_str());
  try {
    app.parse(static_cast<int>(texts.size()), texts.data());
  } catch (const CLI::Success& help_or_version) {
    // No help for what does not exist: "kvevict no-such-verb --help".
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

}  // namespace kvevict::tools
