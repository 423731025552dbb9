// How many blocks of a kernel a multiprocessor has at work.
#ifndef KVEVICT_TESTS_CUDA_GATES_OCCUPANCY_H_
#define KVEVICT_TESTS_CUDA_GATES_OCCUPANCY_H_

#include <cstdint>

namespace kvevict::cuda {

struct BlockNeeds {
  uint32_t n_threads;
  uint32_t n_registers;   // per thread
  uint32_t shared_bytes;  // static and dynamic
};

// An architecture that machines.h does not list counts as the one before it.
uint32_t BlocksPerMultiprocessor(const BlockNeeds& needs, int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_OCCUPANCY_H_
