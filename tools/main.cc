// kvevict: shows what the library does.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "kvevict/kvevict.h"
#include "tools/commands/commands.h"
#include "tools/engine/evictor.h"

namespace kvevict::tools {
namespace {

int Run(int argc, char** argv) {
  CLI::App app("Shrinks the KV cache of LLM inference engines.", "kvevict");
  app.set_version_flag("--version", kvevict_version());
  Action action;
  AddDemoCommand(app, action);
  AddInspectCommand(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    // No help with what is not there: "kvevict no-such-verb --help".
    constexpr bool kOfVerbsToo = true;
    if (app.remaining_size(kOfVerbsToo) == 0) return app.exit(help_or_version);
    app.exit(CLI::ExtrasError(app.remaining(kOfVerbsToo)));
    return kUsageError;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (!action) {
    fmt::print(stderr, "{}", app.help());
    return kUsageError;
  }
  return action();
}

int Fail(const std::exception& error, int status) {
  std::fprintf(stderr, "kvevict: %s\n", error.what());
  return status;
}

}  // namespace
}  // namespace kvevict::tools

int main(int argc, char** argv) {
  using namespace kvevict::tools;
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
