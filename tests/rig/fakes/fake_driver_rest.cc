// The symbols of fake_driver.cc that nothing is expected to call.
#include "cuda/driver.h"

using namespace kvevict::cuda;  // NOLINT

#define KVEVICT_DRIVER(name, symbol, need, ...)                \
  extern "C" [[gnu::weak]] CUresult Fake_##name() asm(symbol); \
  CUresult Fake_##name() { return static_cast<CUresult>(999); }
#include "cuda/driver_functions.inc"

// Keeps one symbol out of the library's table.
#ifdef FAKE_LACKS
asm(".hidden " FAKE_LACKS);
#endif
