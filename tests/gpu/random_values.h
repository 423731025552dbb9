// Random numbers in a cache's element types.
#ifndef KVEVICT_TESTS_GPU_RANDOM_VALUES_H_
#define KVEVICT_TESTS_GPU_RANDOM_VALUES_H_

#include <cstdint>

#include "kvevict/kvevict.h"

namespace kvevict::gpu {

// n numbers of [-1, 1), each a multiple of 1/128, which every dtype holds.
void FillWithValues(uint64_t seed, kvevict_dtype dtype, uint64_t n, void* out);

// Element i of such an array.
double ValueAt(kvevict_dtype dtype, const void* values, uint64_t i);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_VALUES_H_
