// kvevict: shows what the library does.
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "kvevict/kvevict.h"
#include "tools/commands/program.h"
#include "tools/engine/evictor.h"
#include "tools/engine/platform.h"

namespace kvevict::tools {
namespace {

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
    return RunProgram(ProgramArguments(argc, argv));
  } catch (const KvevictError& error) {
    // An invalid argument for the library came from the command line.
    return Fail(error, error.status == KVEVICT_ERROR_INVALID_ARGUMENT
                           ? kUsageError
                           : 1);
  } catch (const std::invalid_argument& error) {
    return Fail(error, kUsageError);
  } catch (const std::exception& error) {
    return Fail(error, 1);
  }
}
