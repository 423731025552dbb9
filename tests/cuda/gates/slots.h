// Issue slots of the scorer's loops, read off its machine code.
#ifndef KVEVICT_TESTS_CUDA_GATES_SLOTS_H_
#define KVEVICT_TESTS_CUDA_GATES_SLOTS_H_

#include <cstddef>

#include "tests/cuda/gates/cubin.h"

namespace kvevict::cuda {

// Of a warp, for every instruction on its way one.
struct ScorerSlots {
  // Once around the loop over chunks of 16 keys, where it is the shorter of the
  // two, that without mask: by the longest of those ways that take the fewest
  // exponentials. References of sums are raised so rarely that they do not count.
  size_t of_chunk = 0;
  size_t exponentials_of_chunk = 0;
  // Once around the loop over tiles, without the chunks; by the longest way.
  size_t of_tile = 0;
};

// Of a kernel with tensor cores. Throws std::runtime_error where the code does not
// have these loops.
ScorerSlots CountScorerSlots(const CubinKernel& kernel, int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_SLOTS_H_
