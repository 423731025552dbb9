// Signals that need no kernel of their own on the CPU.
#ifndef KVEVICT_CORE_SIGNALS_SIGNALS_H_
#define KVEVICT_CORE_SIGNALS_SIGNALS_H_

#include <cstdint>

namespace kvevict {

// Numbers in [0, 1) that depend only on seed, layer, head and position, so that
// a token gets the same number at every eviction.
float RandomScore(uint64_t seed, uint32_t layer, uint32_t head,
                  uint32_t position);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNALS_H_
