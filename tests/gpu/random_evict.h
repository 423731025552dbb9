// Evicts a random model on both sides, which then hold the same.
#ifndef KVEVICT_TESTS_GPU_RANDOM_EVICT_H_
#define KVEVICT_TESTS_GPU_RANDOM_EVICT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/gpu/random_model.h"
#include "tests/gpu/report.h"

namespace kvevict::gpu {

// Numbers with ties, NaN, infinities and other rare values.
std::vector<float> RandomScores(Random* random, size_t n);
// Ascending slots below n.
std::vector<int32_t> RandomSlots(Random* random, uint32_t n);

// Compares scores with the CPU's on the way. Returns true if tokens went, though
// they may have been taken back.
bool EvictModel(const Gpu& gpu, Random* random, RandomModel* model,
                Report* report);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_RANDOM_EVICT_H_
