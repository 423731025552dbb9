// Turns the only exception that our containers throw into a status.
#ifndef KVEVICT_CUDA_NO_MEMORY_H_
#define KVEVICT_CUDA_NO_MEMORY_H_

#include <new>

#include "core/status.h"

namespace kvevict::cuda {

template <typename Body>
Status WithoutThrowing(const char* what, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return OutOfMemory("%s: no memory on the host", what);
  }
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_NO_MEMORY_H_
