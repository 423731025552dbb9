// The symbols of fake_driver.cc that nothing should call.
#include "cuda/driver.h"

using namespace kvevict::cuda;  // NOLINT

#ifdef _WIN32  // DLLs have no weak symbols: the linker takes the first
#define FAKE_WEAK
#else
#define FAKE_WEAK [[gnu::weak]]
#endif
#define KVEVICT_DRIVER(name, symbol, need, ...)            \
  extern "C" FAKE_WEAK CUresult Fake_##name() asm(symbol); \
  CUresult Fake_##name() { return static_cast<CUresult>(999); }
#include "cuda/driver_functions.inc"

// Keeps one symbol out of the library's table.
#if defined(FAKE_LACKS) && defined(_WIN32)
asm(".section .drectve\n.ascii \" -exclude-symbols:" FAKE_LACKS "\"\n.text");
#elif defined(FAKE_LACKS)
asm(".hidden " FAKE_LACKS);
#endif
