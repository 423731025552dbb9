// The words of cuda/kernels/device.cuh for the host, which only reads the kernels' text:
// their entry points launch PTX (tests/cuda/ptx/on_ptx.h), and nobody calls these.
#ifndef KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_
#define KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/rig/simt/simt.h"

#define KV_KERNEL(name, Params, threads, min_blocks) void name(const Params& p)
#define KV_DEVICE [[maybe_unused]] inline
#define KV_SHARED(T, name, n) static T name[n]
#define KV_DYNAMIC_SHARED(name) static uint8_t name[1]

inline constexpr kvevict::simt::Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace kvevict::cuda {

// ---- Threads of a block and of a warp ----

void BlockSync();
bool BlockAny(bool v);
void WarpSync();
template <class T>
T Shuffle(T v, unsigned lane);
template <class T>
T ShuffleXor(T v, unsigned lane_mask);
template <class T>
T ShuffleUp(T v, unsigned delta);
unsigned Ballot(bool v);
int PopCount(unsigned v);
int CountLeadingZeros(unsigned v);
uint32_t Afresh(uint32_t v);

// ---- Arithmetic ----

float Exp2(float v);
float Log2(float v);
float Multiply(float a, float b);
float SquareRoot(float v);
double Fma(double a, double b, double c);
double SquareRoot(double v);

// Tests use these.
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }
template <int kDType>
float ToFloat(uint32_t bits) {
  if constexpr (kDType == kF32) return std::bit_cast<float>(bits);
  if constexpr (kDType == kBF16) return std::bit_cast<float>(bits << 16);
  const uint32_t sign = (bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t fraction = bits & 1023;
  if (exponent == 0) {
    const float v = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -v : v;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}
template <int kDType>
uint32_t FromFloat(float v);

// ---- Memory, copies, matrices, atomics ----

template <class T>
T LoadGlobal(uint64_t address);
// With a body, since kernels also store enumerators of types without a name.
template <class T>
void StoreGlobal(uint64_t, T) {}
void CopyAsync16(void* shared, uint64_t address, bool valid);
void CopyAsyncCommit();
template <int kGroups>
void CopyAsyncWait();
void LoadMatrix4(uint32_t (&r)[4], const void* shared_row);
void LoadTransposed4(uint32_t (&r)[4], const void* shared_row);
template <int kDType>
void MultiplyAccumulate16816(float (&c)[4], const uint32_t (&a)[4],
                             const uint32_t (&b)[2]);
uint32_t AtomicAddShared(uint32_t* shared, uint32_t v);
uint32_t AtomicAddGlobal(uint64_t address, uint32_t v);
uint32_t AtomicTicket(uint64_t address);
uint32_t LoadAcquire(uint64_t address);
void StoreRelease(uint64_t address, uint32_t v);
void SpinYield();

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_SIMT_HOST_DEVICE_HOST_H_
