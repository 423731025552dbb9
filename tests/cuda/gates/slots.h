// Counts issue slots of the scorer's loops in its machine code.
#ifndef KVEVICT_TESTS_CUDA_GATES_SLOTS_H_
#define KVEVICT_TESTS_CUDA_GATES_SLOTS_H_

#include <cstddef>

#include "tests/cuda/gates/cubin.h"

namespace kvevict::cuda {

// A warp's slots, one for every instruction on its way.
struct ScorerSlots {
  // For 16 keys, in the loop over them that is the shorter of the two, that without
  // mask, and may take several times as many at once: by the longest of those ways
  // that take the fewest exponentials. References of sums are raised so rarely that
  // they do not count.
  size_t of_chunk = 0;
  size_t exponentials_of_chunk = 0;
  // Those that stand between the first product of that loop and its last one, so
  // that tensor cores work meanwhile.
  size_t exponentials_between_products = 0;
  // Once around the loop over tiles, without the chunks; by the longest way.
  size_t of_tile = 0;
};

// Counts them in a kernel that multiplies 16 keys by n_products instructions of
// tensor cores.
// Throws std::runtime_error where the code does not have these loops.
ScorerSlots CountScorerSlots(const CubinKernel& kernel, int sm,
                             size_t n_products);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_SLOTS_H_
