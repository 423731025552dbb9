// A block raises flags in global memory to tell others that it has read. The
// machine code must have certain instructions before it raises them.
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
  // What is wrong. Raising needs a barrier on each way to the store, at which
  // no global load is under way, then a fence of scope GPU. Acquiring needs the
  // first cache emptied after the load and before the next branch.
  std::vector<std::string> faults;
};

// Throws std::runtime_error if the ways cannot be found.
Flags CheckFlags(const CubinKernel& kernel, int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_FLAGS_H_
