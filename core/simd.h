// The SIMD targets of this build that this CPU can run.
#ifndef KVEVICT_CORE_SIMD_H_
#define KVEVICT_CORE_SIMD_H_

#include <cstdint>

namespace kvevict {

// Best first; nullptr past the end.
const char* SimdTargetAt(uint32_t index);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIMD_H_
