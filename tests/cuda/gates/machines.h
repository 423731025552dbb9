// NVIDIA's published figures of its architectures and GPUs.
#ifndef KVEVICT_TESTS_CUDA_GATES_MACHINES_H_
#define KVEVICT_TESTS_CUDA_GATES_MACHINES_H_

#include <cstdint>

namespace kvevict::cuda {

// Limits of a multiprocessor: CUDA C++ Programming Guide, "Technical
// Specifications per Compute Capability". All have 65,536 registers.
struct MultiprocessorLimits {
  int sm;
  uint32_t n_warps;
  uint32_t n_blocks;
  uint32_t shared_bytes;
};
inline constexpr MultiprocessorLimits kLimits[] = {
    {70, 64, 32, 96 << 10},  {75, 32, 16, 64 << 10},   {80, 64, 32, 164 << 10},
    {86, 48, 16, 100 << 10}, {87, 48, 16, 164 << 10},  {89, 48, 24, 100 << 10},
    {90, 64, 32, 228 << 10}, {100, 64, 32, 228 << 10}, {103, 64, 32, 228 << 10},
    {120, 48, 24, 100 << 10}};

// Figures of data sheets. At these clocks tensor cores reach the stated rate
// (16-bit elements, sums in f32, dense).
struct Gpu {
  const char* name;
  int sm;
  uint32_t n_multiprocessors;
  double ghz;
  double bytes_per_ns;
  double tensor_tflops;
  // The part of it that mma.sync reaches. From sm_90 on the rest needs other
  // instructions; 63 % was measured (arXiv:2402.13499).
  double mma_sync_share;
  uint32_t fma_per_clock;  // of a multiprocessor, f32
};
inline constexpr Gpu kGpus[] = {
    {"A100 SXM 80 GB", 80, 108, 1.41, 2039, 312, 1.0, 64},
    {"A40", 86, 84, 1.74, 696, 149.7, 1.0, 128},
    {"L40S", 89, 142, 2.52, 864, 362, 1.0, 128},
    {"H100 SXM", 90, 132, 1.83, 3350, 989.4, 0.63, 128},
    {"H200", 90, 132, 1.83, 4800, 989.4, 0.63, 128}};

// The work of a multiprocessor's four schedulers in a clock; exp2 and the like in
// results (Programming Guide, "Throughput of Native Arithmetic Instructions").
inline constexpr double kIssuesPerClock = 4;
inline constexpr double kSpecialPerClock = 16;

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_MACHINES_H_
