#include <cstdlib>

#include "core/platform.h"

namespace kvevict::platform {

// WebAssembly has no libraries to open and no folders of its own: the rest of
// platform.h is CUDA's, which is left out.
void* AllocateAligned(size_t alignment, size_t n_bytes) {
  return std::aligned_alloc(alignment, n_bytes);
}

void FreeAligned(void* memory) { std::free(memory); }

}  // namespace kvevict::platform
