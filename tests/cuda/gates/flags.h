// Flags in global memory by which a block tells others that it has read: what has
// to stand in the machine code before they are raised.
#ifndef KVEVICT_TESTS_CUDA_GATES_FLAGS_H_
#define KVEVICT_TESTS_CUDA_GATES_FLAGS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "tests/cuda/gates/cubin.h"

namespace kvevict::cuda {

struct Flags {
  size_t n_raised = 0;    // stores of scope GPU
  size_t n_acquired = 0;  // loads of scope GPU
  // What is wrong. Raising: on each way to the store a barrier, at which no
  // global load is on its way, then a fence of scope GPU. Acquiring: behind the
  // load and before the next branch the first cache is emptied.
  std::vector<std::string> faults;
};

// Throws std::runtime_error where nobody can tell which ways there are.
Flags CheckFlags(const CubinKernel& kernel, int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_FLAGS_H_
