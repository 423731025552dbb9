// Random numbers in a cache's element types.
#ifndef KVEVICT_TESTS_GPU_RANDOM_VALUES_H_
#define KVEVICT_TESTS_GPU_RANDOM_VALUES_H_

#include <cstdint>

#include "kvevict/kvevict.h"

namespace kvevict::gpu {

// n numbers in [-1, 1): multiples of 1/128, which every plain dtype holds, or whole
// blocks of codes: fp8 in [-1, 1], ggml's with scales for as much.
void FillWithValues(uint64_t seed, kvevict_dtype dtype, uint64_t n, void* out);

// Stores a number that f16 and bf16 hold, as f32, f16 or bf16.
void StoreValue(kvevict_dtype dtype, float value, void* to);

// Element i of such an array.
double ValueAt(kvevict_dtype dtype, const void* values, uint64_t i);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_VALUES_H_
