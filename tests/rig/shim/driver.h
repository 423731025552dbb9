// Declarations that the functions of the shim driver share.
//
// The driver is one for the tests of the bindings: it runs kernels as C++ on fibers
// (tests/rig/simt), each when it is queued or when its graph is launched, and device
// memory is the process's own. The fake libnvrtc belongs to it: its "cubin" names the
// file and its constants, and the driver has them compiled by the tests' compiler.
// The mock driver is the strict one.
//
// The declarations come from the
// library's own list, under the symbols that it looks for.
#ifndef KVEVICT_TESTS_RIG_SHIM_DRIVER_H_
#define KVEVICT_TESTS_RIG_SHIM_DRIVER_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace kvevict::shim {

using namespace cuda;  // NOLINT: this is the other end of it

#define KVEVICT_DRIVER(name, symbol, need, ...)     \
  extern "C" __attribute__((visibility("default"))) \
  CUresult Shim_##name(__VA_ARGS__) asm(symbol);
#include "cuda/driver_functions.inc"
#undef KVEVICT_DRIVER

// Results that the library does not tell apart.
constexpr auto kInvalidValue = static_cast<CUresult>(1);
constexpr auto kInvalidImage = static_cast<CUresult>(200);
constexpr auto kInvalidContext = static_cast<CUresult>(201);
constexpr auto kNotFound = static_cast<CUresult>(500);

using Work = std::function<CUresult()>;
using Graph = std::vector<Work>;

struct State {
  std::map<std::string, void*> libraries;
  CUstream capturing = nullptr;
  Graph captured;
};
inline State& TheState() {
  static State& state = *new State;
  return state;
}

// Does the work, or adds it to the graph that the stream captures.
CUresult Queue(CUstream stream, Work work);

}  // namespace kvevict::shim

#endif  // KVEVICT_TESTS_RIG_SHIM_DRIVER_H_
