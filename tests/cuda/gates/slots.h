// Counts issue slots of the scorer's loops in its machine code.
#ifndef KVEVICT_TESTS_CUDA_GATES_SLOTS_H_
#define KVEVICT_TESTS_CUDA_GATES_SLOTS_H_

#include <cstddef>

#include "tests/cuda/gates/cubin.h"

namespace kvevict::cuda {

// A warp's slots, one for every instruction on its way.
struct ScorerSlots {
  // Once around the loop over chunks of 16 keys: the shorter of the two, which
  // has no mask, by the longest way with the fewest exponentials. References of
  // sums are raised so rarely that they do not count.
  size_t of_chunk = 0;
  size_t exponentials_of_chunk = 0;
  // Once around the loop over tiles without the chunks, by the longest way.
  size_t of_tile = 0;
};

// Counts a kernel with tensor cores. Throws std::runtime_error if its code does
// not have these loops.
ScorerSlots CountScorerSlots(const CubinKernel& kernel, int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_SLOTS_H_
