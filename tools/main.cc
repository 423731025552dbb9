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

int Main(int argc, char** argv) {
  CLI::App app("Shrinks the KV cache of LLM inference engines.", "kvevict");
  app.set_version_flag("--version", kvevict_version());
  Action action;
  AddDemoCommand(app, action);
  AddInspectCommand(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  if (!action) {
    fmt::print(stderr, "{}", app.help());
    return kUsageError;
  }
  try {
    return action();
  } catch (const KvevictError& error) {
    fmt::print(stderr, "kvevict: {}\n", error.what());
    // What the library finds wrong came from the command line.
    return error.status == KVEVICT_ERROR_INVALID_ARGUMENT ? kUsageError : 1;
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "kvevict: {}\n", error.what());
    return kUsageError;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvevict: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace kvevict::tools

int main(int argc, char** argv) { return kvevict::tools::Main(argc, argv); }
