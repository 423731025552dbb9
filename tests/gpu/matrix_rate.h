// The speed of the GPU's tensor cores by mma.sync, which the scorer uses.
#ifndef KVEVICT_TESTS_GPU_MATRIX_RATE_H_
#define KVEVICT_TESTS_GPU_MATRIX_RATE_H_

#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// bf16 FLOPs per second of m16n8k16 products in registers; 0 before sm_80.
double MatrixRate(const Gpu& gpu, bool full);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_MATRIX_RATE_H_
